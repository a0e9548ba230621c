"""The section `tiles`."""

from typing import Literal

from pydantic import Field

from gigatile.settings.section import Section


class TileSettings(Section):
    """How a slide is cut into tiles."""

    size: int = Field(224, ge=16, le=4096, description="Side of a tile, in pixels.")
    mpp: float | None = Field(
        None,
        gt=0.01,
        le=100,
        description="Micrometres per pixel of the tiles (0.5 is about 20x, 0.25 about 40x). Slides "
        "are\nresampled where they have no level at this scale. null: each slide's own level 0.",
    )
    max_background: float = Field(
        0.5, ge=0, le=1, description="A tile with a larger share of background is dropped."
    )
    quality: int = Field(90, ge=1, le=100, description="JPEG quality of the stored tiles, 1-100.")
    on_error: Literal["record", "stop"] = Field(
        "record",
        description="A slide that gives no tiles: `record` the reason and go on, or `stop`.",
    )
