"""The tile grid: where each tile lies on the slide, and how its pixels are read."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from gigatile.settings.tiles import TileSettings
from gigatile.slides.reader import Slide, SlideError

# Level 0 may be coarser than the requested scale by up to this factor. Beyond it, tiles would be
# enlarged to a resolution that the scanner did not record.
MAX_ENLARGEMENT = 1.1
# A slide with more tiles is assumed to be damaged: 1,000,000² px have 20 million tiles of 224 px.
MAX_TILES = 20_000_000


@dataclass(frozen=True)
class Grid:
    """Non-overlapping square tiles over a slide, from its top-left corner.

    Attributes:
        size: side of a tile's image, in pixels.
        mpp: micrometres per pixel of a tile's image; None if the slide's scale is unknown.
        extent: side of a tile in pixels of level 0; may be fractional.
        level: the level to read.
        scale: level-0 pixels per pixel of that level, across and down.
        resampled: whether the level's pixels are resized to `size`.
        columns, rows: tiles across and down. Partial tiles at the right and lower edge are left
            out.
    """

    size: int
    mpp: float | None
    extent: float
    level: int
    scale: tuple[float, float]
    resampled: bool
    columns: int
    rows: int

    def corners(self) -> np.ndarray:
        """Return each tile's top-left corner (x, y) in level-0 pixels, row by row: (n, 2) int64.

        Each corner is rounded separately, so rounding errors don't accumulate. Without resampling,
        a corner is first moved to the nearest pixel of the level: a tile's image starts within half
        a level-0 pixel of its corner, even if the level's downsample is 2.0005.
        """
        across, down = (
            np.rint(self._align(np.arange(count) * self.extent, scale)).astype(np.int64)
            for count, scale in zip((self.columns, self.rows), self.scale, strict=True)
        )
        y, x = np.meshgrid(down, across, indexing="ij")
        return np.stack([x.ravel(), y.ravel()], axis=1)

    def _align(self, positions: np.ndarray, scale: float) -> np.ndarray:
        return positions if self.resampled else np.rint(positions / scale) * scale

    def boxes(self, corners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the regions of the level to read for tiles.

        Args:
            corners: of the tiles, (n, 2) int64, from `corners`.

        Returns:
            The boxes of the regions: left, top, width, height in pixels of the level, (n, 4) int64;
            and the span of the tile in each region: left, top, right, bottom in pixels of the
            region, (n, 4) float64.
        """
        begin = corners / self.scale
        if not self.resampled:
            size = np.full_like(corners, self.size)
            spans = np.broadcast_to((0.0, 0.0, self.size, self.size), (len(corners), 4))
            return np.hstack([np.rint(begin).astype(np.int64), size]), spans
        end = begin + self.extent / np.array(self.scale)
        first = np.floor(begin).astype(np.int64)
        size = np.ceil(end).astype(np.int64) - first
        return np.hstack([first, size]), np.hstack([begin - first, end - first])

    def resize_to_tile(self, region: np.ndarray, span: np.ndarray) -> np.ndarray:
        """Return the tile in a region: (size, size, 3) uint8.

        Args:
            region: pixels of a box from `boxes`, (height, width, 3) uint8.
            span: of the tile in it, from `boxes`.
        """
        if not self.resampled:
            return region
        # With a fractional span, the image covers exactly `extent` at any scale of the level.
        left, top, right, bottom = span.tolist()
        resized = Image.fromarray(region).resize(
            (self.size, self.size), Image.Resampling.BICUBIC, box=(left, top, right, bottom)
        )
        return np.asarray(resized)


def plan_grid(slide: Slide, mpp: float | None, settings: TileSettings) -> Grid:
    """Return the tile grid of a slide.

    The level is chosen by micrometres per pixel, not by its number.

    Args:
        slide: the open slide.
        mpp: micrometres per pixel of its level 0, if known.
        settings: the requested size and scale.

    Raises:
        SlideError: the scale is required but unknown, or finer than level 0; or no tile fits on the
            slide.
    """
    if settings.mpp is None:
        tile_mpp, extent = mpp, float(settings.size)
    elif mpp is None:
        power = slide.objective_power
        objective = (
            f"its objective, {power}x, is not in tiles.objectives" if power else "and no objective"
        )
        raise SlideError(
            f"the file has no mpp ({objective}), but tiles.mpp = {settings.mpp:g} requires it; set "
            "it in the sheet's column mpp"
        )
    elif mpp > MAX_ENLARGEMENT * settings.mpp:
        raise SlideError(
            f"its level 0 has {mpp:g} µm per pixel, too coarse for tiles.mpp = {settings.mpp:g}"
        )
    else:
        tile_mpp, extent = settings.mpp, settings.size * settings.mpp / mpp
    columns = int((slide.width + 1e-6) // extent)
    rows = int((slide.height + 1e-6) // extent)
    if not columns or not rows:
        raise SlideError(
            f"it is smaller than one tile: {slide.width}×{slide.height} px, but a tile spans "
            f"{extent:g} px"
        )
    if columns * rows > MAX_TILES:
        raise SlideError(
            f"its header gives a size of {slide.width}×{slide.height} px, which is "
            f"{columns * rows:,} tiles; the limit is {MAX_TILES:,}"
        )
    # The coarsest level at which a tile has at least `size` pixels a side. No resampling is needed
    # if both sides are within half a pixel of `size`.
    sides = [(extent / across, extent / down) for across, down in slide.scales]
    fine = [level for level, side in enumerate(sides) if min(side) > settings.size - 0.5]
    level = max(fine, default=0)
    resampled = max(abs(side - settings.size) for side in sides[level]) >= 0.5
    scale = slide.scales[level]
    return Grid(settings.size, tile_mpp, extent, level, scale, resampled, columns, rows)
