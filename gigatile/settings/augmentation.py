"""The section `augmentation`."""

from pydantic import Field

from gigatile.settings.section import Section


class AugmentationSettings(Section):
    """Random changes of the tiles that the model is trained on, new ones in every epoch."""

    scale: float = Field(
        0, ge=0, le=0.5, description="Maximum change of the size of a tile's content, as a share."
    )
    stain: float = Field(
        0,
        ge=0,
        le=1,
        description="Haematoxylin, eosin and residual each change by up to this share, and by up "
        "to this optical\ndensity. Published: 0.05 (light) and 0.2 (strong).",
    )
    brightness: float = Field(
        0, ge=0, le=1, description="Maximum change of brightness, as a share."
    )
    contrast: float = Field(0, ge=0, le=1, description="Maximum change of contrast, as a share.")
    saturation: float = Field(
        0, ge=0, le=1, description="Maximum change of the distance from grey, as a share."
    )
    hue: float = Field(0, ge=0, le=180, description="Maximum rotation of the hue, in degrees.")
    blur: float = Field(
        0, ge=0, le=10, description="Maximum standard deviation of Gaussian blur, in pixels."
    )
    noise: float = Field(
        0, ge=0, le=100, description="Maximum standard deviation of noise, in grey levels of 255."
    )
    jpeg_quality: int = Field(
        100,
        ge=1,
        le=100,
        description="Lowest quality with which a tile is compressed again, up to 100. 100: never.",
    )
    cutout: float = Field(
        0,
        ge=0,
        le=1,
        description="Maximum side of a square that is erased, as a share of the tile's side.",
    )
    mixup: float = Field(
        0,
        ge=0,
        le=100,
        description="Mix each tile with another of its batch, in shares from Beta(mixup, mixup). "
        "Published: 0.2.\n0: not at all.",
    )
