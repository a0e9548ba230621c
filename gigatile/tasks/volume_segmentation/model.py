"""A trained segmentation model in memory."""

from collections.abc import Mapping
from pathlib import Path

from gigatile.errors import UserError
from gigatile.model import Model
from gigatile.settings.windows import WindowSettings
from gigatile.tasks.volume_segmentation.case_segmentation import CaseSegmentation, segment
from gigatile.tasks.volume_segmentation.sliding_window import Segmenter
from gigatile.volumes.bytestream import VolumeError
from gigatile.volumes.case_volumes import STACKED, CaseVolumes


class CaseModel(Model):
    """A trained segmentation model, applied to cases.

    Attributes:
        settings: the section `volumes`, as in training.
        labels: the value of each label by its name.
    """

    def __init__(self, model: Path, described: Path) -> None:
        """Load `model` (.keras); `described` is its settings.json.

        Raises:
            UserError: a file is missing or damaged, or the model is not the described one.
        """
        self._segmenter = Segmenter(model, described)
        self.settings = self._segmenter.volumes
        self.labels = dict(self.settings.label_values)

    def predict(
        self,
        images: Mapping[str, Path | str] | Path | str,
        *,
        windows: WindowSettings | None = None,
    ) -> CaseSegmentation:
        """Prepare a case and segment it; no file is written.

        Args:
            images: the file of each modality by its name; or one file with all modalities as
                channels.
            windows: the section `windows` of the settings; None: the defaults.

        Returns:
            Labels on the grid of the case's files.

        Raises:
            UserError: the case cannot be used; the message says why.
        """
        if not isinstance(images, Mapping):
            images = {STACKED: images}
        paths = {name: Path(path) for name, path in images.items()}
        case = next((path.name.split(".")[0] for path in paths.values()), "")
        try:
            prepared = CaseVolumes(case, paths, None, self.settings).prepare()
        except VolumeError as error:
            raise UserError(f"case {case}: {error}") from None
        return segment(self._segmenter, prepared, prepared.grid, windows or WindowSettings())


def open_model(model: Path, described: Path) -> CaseModel:
    """Open a model; see `gigatile.model.Model.open`."""
    return CaseModel(model, described)
