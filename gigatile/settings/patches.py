"""The section `patches`."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from gigatile.settings.section import Section


class PatchSettings(Section):
    """Patches of volumes that training samples, new ones in every epoch."""

    RENAMED: ClassVar[Mapping[str, str]] = {"turned": "rotated"}
    # Keys that change patches at random, if they are not 0.
    AUGMENTATION: ClassVar[tuple[str, ...]] = (
        *("flips", "rotated", "intensity", "elastic"),
        *("inverted_gamma", "blur", "low_resolution"),
    )

    size: tuple[int, int, int] = Field(
        (128, 128, 128),
        description="Voxels of a patch along x, y and z (right, anterior, superior); multiples of "
        "8.",
    )
    per_case: int = Field(4, ge=1, le=1000, description="Patches per case and epoch.")
    foreground: float = Field(
        0.33, ge=0, le=1, description="Share of the patches that are centred on a labelled voxel."
    )
    flips: bool = Field(True, description="Flip half of the patches along each axis.")
    rotated: float = Field(
        0.3, ge=0, le=1, description="Share of the patches that are rotated and scaled."
    )
    rotation: float = Field(
        15, ge=0, le=180, description="Maximum rotation about each axis, in degrees."
    )
    scaling: float = Field(0.2, ge=0, le=0.9, description="Maximum change of size, as a share.")
    intensity: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Maximum change of brightness, contrast and gamma, and maximum noise, in\n"
        "standard deviations of a channel.",
    )
    elastic: float = Field(
        0,
        ge=0,
        le=1,
        description="Share of the patches that are deformed elastically, by up to 1/20 of their "
        "side.",
    )
    inverted_gamma: float = Field(
        0,
        ge=0,
        le=1,
        description="Share of the channels of which gamma changes the inverted contrast.",
    )
    blur: float = Field(
        0, ge=0, le=1, description="Share of the channels that are blurred, by 0.5 to 1 voxel."
    )
    low_resolution: float = Field(
        0,
        ge=0,
        le=1,
        description="Share of the channels that lose resolution, up to half of the voxels along "
        "each axis.",
    )
    targets: Literal["regions", "labels"] = Field(
        "regions",
        description="What the model predicts: each of volumes.regions, which may overlap, or each "
        "label.",
    )

    def without_augmentation(self) -> "PatchSettings":
        """Return these settings for patches that are not changed at random."""
        return self.model_copy(update=dict.fromkeys(self.AUGMENTATION, 0))

    @field_validator("size")
    @classmethod
    def _halved_three_times(cls, size: tuple[int, int, int]) -> tuple[int, int, int]:
        if not all(16 <= side <= 512 and side % 8 == 0 for side in size):
            raise ValueError(f"found {list(size)}; must be three multiples of 8 in 16-512")
        return size
