"""A trained model over a whole volume, window by window; memory is bound by a slab of it."""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import tensorflow as tf

from gigatile.errors import UserError
from gigatile.files import read_json
from gigatile.models.saving import load_model
from gigatile.records.volume import VolumeRecord
from gigatile.settings.patches import PatchSettings
from gigatile.settings.section import check_section
from gigatile.settings.volumes import VolumeSettings
from gigatile.settings.windows import WindowSettings
from gigatile.volumes.label_decision import Decision
from gigatile.volumes.targets import Targets

# A window counts less towards its faces, where it sees less of what is around: a Gaussian whose
# standard deviation is this share of a side (Isensee et al. 2021,
# https://doi.org/10.1038/s41592-020-01008-z).
SIGMA = 1 / 8
# Axes along which a window is flipped: none first.
FLIPS = ((), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))


class Segmenter:
    """A trained model of volumes.

    Attributes:
        volumes: the settings by which its cases were prepared.
        targets: what its scores stand for.
        decide: from scores to labels.
    """

    def __init__(self, model: Path, described: Path) -> None:
        """Load `model` (.keras); `described` is the settings.json written beside it.

        Raises:
            UserError: a file is missing or damaged, or the model is for something else.
        """
        settings = read_json(described)
        if not {"volumes", "patches"} <= set(settings):
            raise UserError(f"{described}: does not describe a model of volumes")
        self.volumes = check_section(VolumeSettings, settings["volumes"], str(described))
        patches = check_section(PatchSettings, settings["patches"], str(described))
        self.targets = Targets(self.volumes, patches)
        self.decide = Decision(self.targets.names, self.targets.activation, self.volumes)
        self._model = load_model(model, settings.get("sha256"), described)
        self._run = tf.function(lambda images: self._model(images, training=False))

    @property
    def window(self) -> tuple[int, int, int]:
        """The voxels that the model takes along each axis."""
        x, y, z = self._model.input_shape[1:4]
        return x, y, z

    def check(self, record: VolumeRecord) -> None:
        """Refuse a case with other channels.

        Raises:
            UserError: its channels are not the model's.
        """
        found, wanted = list(record.head.channels), list(self.volumes.modalities)
        if found != wanted:
            raise UserError(
                f"case {record.head.case}: has the channels {', '.join(found)} where the model "
                f"takes {', '.join(wanted)}; prepare it with the model's settings"
            )

    def score(self, image: np.ndarray, flips: bool) -> np.ndarray:
        """Return the scores of one window's voxels.

        Args:
            image: (x, y, z, channels) float16, of the size of `window`; 0 where there is no head.
            flips: average over all flips.

        Returns:
            (x, y, z, outputs) float32. Where all is 0, nothing is asked of the model.
        """
        if not image.any():
            return self._nothing(image.shape[:3])
        axes = FLIPS if flips else FLIPS[:1]
        found = np.zeros((*image.shape[:3], self.targets.outputs), np.float32)
        for flipped in axes:
            seen = self._run(np.flip(image, flipped)[None]).numpy()[0]
            found += np.flip(seen, flipped)
        return found / len(axes)

    def _nothing(self, shape: Sequence[int]) -> np.ndarray:
        scores = np.zeros((*shape, self.targets.outputs), np.float32)
        if self.targets.activation == "softmax":
            scores[..., 0] = 1
        return scores


def score_volume(
    segmenter: Segmenter, record: VolumeRecord, settings: WindowSettings
) -> Iterator[np.ndarray]:
    """Yield the scores of a case's voxels in slabs, from left to right.

    Windows that overlap are averaged, each weighted by a Gaussian around its middle. No more is in
    memory than a slab of the width of a window.

    Args:
        segmenter: the model.
        record: the case.
        settings: how far windows overlap.

    Yields:
        (n, y, z, outputs) float32: successive planes, in all those of the record.
    """
    shape, window = record.head.shape, segmenter.window
    starts = [_starts(*sides, settings.overlap) for sides in zip(shape, window, strict=True)]
    weights = _gaussian(window)
    sums = np.zeros((window[0], shape[1], shape[2], segmenter.targets.outputs), np.float32)
    total = np.zeros(sums.shape[:3], np.float32)
    for first, following in zip(starts[0], [*starts[0][1:], shape[0]], strict=True):
        for y, z in product(starts[1], starts[2]):
            image, _ = record.read((first, y, z), window)
            # What reaches beyond the volume was read as 0 and is of no interest.
            ny, nz = min(window[1], shape[1] - y), min(window[2], shape[2] - z)
            place = (slice(None), slice(y, y + ny), slice(z, z + nz))
            part = weights[:, :ny, :nz]
            sums[place] += segmenter.score(image, settings.flips)[:, :ny, :nz] * part[..., None]
            total[place] += part
        done = following - first
        yield sums[:done] / total[:done, ..., None]
        for array in (sums, total):
            array[: len(array) - done] = array[done:].copy()
            array[len(array) - done :] = 0


def _starts(side: int, window: int, overlap: float) -> list[int]:
    """Return where windows begin along an axis, as far apart as may be and evenly.

    A volume that is smaller than a window has one, which reaches beyond it.
    """
    if side <= window:
        return [0]
    count = 1 + -(-(side - window) // max(1, int(window * (1 - overlap))))
    return [round(number * (side - window) / (count - 1)) for number in range(count)]


def _gaussian(window: Sequence[int]) -> np.ndarray:
    """Return the weight of each voxel of a window: (x, y, z) float32, 1 in the middle."""
    x, y, z = (
        np.exp(-0.5 * ((np.arange(side) - (side - 1) / 2) / (SIGMA * side)) ** 2) for side in window
    )
    found = (x[:, None, None] * y[:, None] * z).astype(np.float32)
    return found / found.max()
