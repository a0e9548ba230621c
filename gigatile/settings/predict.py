"""The section `predict`."""

from pydantic import Field, field_validator

from gigatile.paths import fault_of_path
from gigatile.settings.section import Section


class PredictSettings(Section):
    """New slides for the trained model."""

    samples: str | None = Field(
        None,
        description="Sheet of new slides (columns slide, path; optional patient, mpp); null: none."
        "\nThe predictions are written to results/<run>/predictions/.",
    )

    slides: str | None = Field(
        None,
        description="For task: instance_segmentation: sheet of whole slides of which to detect all "
        "instances\n(columns slide, path; optional patient, mpp); null: none.",
    )

    bundle: str | None = Field(
        None,
        description="Folder of a bundle: its model predicts, with its settings, and there is no "
        "cohort.\nnull: train a model. `gigatile predict BUNDLE SHEET` sets this.",
    )

    @field_validator("samples", "slides", "bundle")
    @classmethod
    def _path_that_can_be_passed_on(cls, path: str | None) -> str | None:
        if path is not None and (fault := fault_of_path(path)):
            raise ValueError(f"path {path!r} {fault}")
        return path
