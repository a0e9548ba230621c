"""The section `evaluate`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from gigatile.settings.section import MAX_SEED, Section

# A share of slides that is wanted.
Share = Annotated[float, Field(gt=0, le=1)]


class EvaluationSettings(Section):
    """How the test cohort is scored."""

    # Scores and metrics do not depend on these; another stage chooses the thresholds.
    EXECUTION: ClassVar[frozenset[str]] = frozenset({"sensitivities", "specificities"})

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
    lesion_dilation: int = Field(
        3,
        ge=0,
        le=20,
        description="Lesion-wise metrics of volumes: parts of a region that touch when they grow "
        "by this many voxels are\none lesion. 3 in BraTS' gliomas, 1 in its metastases.",
    )
    lesion_mm3: float = Field(
        50,
        ge=0,
        le=1e9,
        description="Lesion-wise metrics: lesions of the reference up to this volume, in mm³, do "
        "not count. 50 in BraTS'\ngliomas, 2 in its metastases.",
    )
    score_threshold: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Lowest score of a predicted instance, for AJI, panoptic quality and F1.",
    )
    sensitivities: tuple[Share, ...] = Field(
        (0.95,),
        max_length=10,
        description="Wanted sensitivities of each class of slides: for each, a threshold is chosen "
        "on the validation\nsplit that has at least this sensitivity there, and as high a "
        "specificity as possible.",
    )
    specificities: tuple[Share, ...] = Field(
        (0.95,),
        max_length=10,
        description="Wanted specificities, likewise with as high a sensitivity as possible.",
    )

    @field_validator("sensitivities", "specificities")
    @classmethod
    def _each_once(cls, shares: tuple[float, ...]) -> tuple[float, ...]:
        if len(set(shares)) < len(shares):
            raise ValueError(f"found {list(shares)}; must name each share once")
        return shares
