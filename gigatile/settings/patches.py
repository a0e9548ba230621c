"""The section `patches`."""

from typing import Literal

from pydantic import Field, field_validator

from gigatile.settings.section import Section


class PatchSettings(Section):
    """What training is shown of volumes: patches, new ones in every epoch."""

    size: tuple[int, int, int] = Field(
        (128, 128, 128),
        description="Voxels of a patch from left to right, from back to front, and upwards; "
        "multiples of 8.",
    )
    per_case: int = Field(4, ge=1, le=1000, description="Patches of each case that an epoch shows.")
    foreground: float = Field(
        0.33, ge=0, le=1, description="Share of the patches that are centred on a labelled voxel."
    )
    flips: bool = Field(True, description="Half of the patches are flipped, along each axis.")
    turned: float = Field(
        0.3, ge=0, le=1, description="Share of the patches that are turned and scaled."
    )
    rotation: float = Field(
        15, ge=0, le=180, description="They are turned by up to so many degrees about each axis,"
    )
    scaling: float = Field(
        0.2, ge=0, le=0.9, description="and made larger or smaller by up to this share."
    )
    intensity: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Brightness, contrast and gamma change by up to this, and noise is of up to "
        "this, in standard\ndeviations of a channel.",
    )
    targets: Literal["regions", "labels"] = Field(
        "regions",
        description="What the model tells apart: each of volumes.regions from the rest, or each "
        "label from all others.",
    )

    @field_validator("size")
    @classmethod
    def _halved_three_times(cls, size: tuple[int, int, int]) -> tuple[int, int, int]:
        if not all(16 <= side <= 512 and side % 8 == 0 for side in size):
            raise ValueError(f"found {list(size)}; must be three multiples of 8 in 16-512")
        return size
