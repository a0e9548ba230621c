"""The tile grid: where each tile lies on the slide, and how its pixels are to be had."""

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from gigatile.settings.tiles import TileSettings
from gigatile.slides.reader import Slide, SlideError

# Up to this factor a slide's level 0 may be coarser than the wanted scale; beyond it,
# enlarging would show the model detail that no scanner saw.
MAX_ENLARGEMENT = 1.1


@dataclass(frozen=True)
class Grid:
    """Non-overlapping square tiles over a slide, from its top-left corner.

    Attributes:
        size: side of a tile's image, in pixels.
        mpp: micrometres per pixel of a tile's image, or None where the slide does not tell.
        extent: side of a tile in pixels of level 0; need not be whole.
        level: the level that is read.
        resampled: whether that level's pixels are resized to `size`.
        columns, rows: whole tiles across and down; tiles that would reach over the edge are not
            made.
    """

    size: int
    mpp: float | None
    extent: float
    level: int
    resampled: bool
    columns: int
    rows: int

    def corners(self) -> np.ndarray:
        """Return each tile's top-left corner (x, y) in level-0 pixels, row by row: (n, 2) int64.

        Every corner is rounded by itself, so that the error is below a pixel and never adds up.
        """
        across = np.rint(np.arange(self.columns) * self.extent).astype(np.int64)
        down = np.rint(np.arange(self.rows) * self.extent).astype(np.int64)
        y, x = np.meshgrid(down, across, indexing="ij")
        return np.stack([x.ravel(), y.ravel()], axis=1)


def plan_grid(slide: Slide, mpp: float | None, settings: TileSettings) -> Grid:
    """Decide the grid of a slide.

    Args:
        slide: the open slide.
        mpp: micrometres per pixel of its level 0, where known.
        settings: the wanted size and scale. Micrometres decide, never a level's number.

    Raises:
        SlideError: the scale is needed and unknown or out of reach, or no tile fits on the slide.
    """
    if settings.mpp is None:
        wanted, extent = mpp, float(settings.size)
    elif mpp is None:
        power = slide.objective_power
        told = f"its magnification, {power}x, is no measure" if power else "nor a magnification"
        raise SlideError(
            f"the file tells no mpp ({told}), and tiles.mpp = {settings.mpp:g} needs it; give it "
            "in the sheet's column mpp"
        )
    elif mpp > MAX_ENLARGEMENT * settings.mpp:
        raise SlideError(
            f"its level 0 has {mpp:g} µm per pixel; tiles.mpp = {settings.mpp:g} would need "
            "detail that the slide does not have"
        )
    else:
        wanted, extent = settings.mpp, settings.size * settings.mpp / mpp
    columns = int((slide.width + 1e-6) // extent)
    rows = int((slide.height + 1e-6) // extent)
    if not columns or not rows:
        raise SlideError(
            f"it is smaller than one tile: {slide.width}×{slide.height} px where a tile spans "
            f"{extent:g} px"
        )
    # The coarsest level that still has every detail of the tile; a level fits as it is when the
    # tile's sides in its pixels are `size` to within half a pixel.
    sides = [(extent / across, extent / down) for across, down in slide.scales]
    fine = [level for level, side in enumerate(sides) if min(side) > settings.size - 0.5]
    level = max(fine, default=0)
    resampled = max(abs(side - settings.size) for side in sides[level]) >= 0.5
    return Grid(settings.size, wanted, extent, level, resampled, columns, rows)


def read_tile(slide: Slide, grid: Grid, x: int, y: int) -> np.ndarray:
    """Return the pixels of the tile at corner (x, y): (size, size, 3) uint8."""
    across, down = slide.scales[grid.level]
    left, top = x / across, y / down
    if not grid.resampled:
        return np.asarray(slide.region(round(left), round(top), grid.level, grid.size, grid.size))
    right, bottom = left + grid.extent / across, top + grid.extent / down
    column, row = int(left), int(top)
    region = slide.region(
        column, row, grid.level, math.ceil(right) - column, math.ceil(bottom) - row
    )
    # The box is fractional, so the image spans exactly `extent` whatever the level's scale.
    resized = region.resize(
        (grid.size, grid.size),
        Image.Resampling.BICUBIC,
        box=(left - column, top - row, right - column, bottom - row),
    )
    return np.asarray(resized)
