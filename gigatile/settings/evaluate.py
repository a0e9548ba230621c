"""The section `evaluate`."""

from typing import Literal

from pydantic import Field

from gigatile.settings.section import MAX_SEED, Section


class EvaluationSettings(Section):
    """How the test cohort is scored."""

    resamples: int = Field(
        1000,
        ge=1000,
        le=10_000,
        description="Number of random draws of patient weights, for the intervals.",
    )
    seed: int = Field(1, ge=0, le=MAX_SEED, description="Seed of the draws.")
    hd95: Literal["surface", "voxels"] = Field(
        "surface",
        description="95 % Hausdorff distance of volumes: between `surface` elements weighted by "
        "area, as in\nsurface-distance and BraTS since 2023; or between edge `voxels` with equal "
        "weights, as in MONAI.",
    )
    score_threshold: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Lowest score of a predicted instance, for AJI, panoptic quality and F1.",
    )
