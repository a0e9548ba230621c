"""The tile grid: where each tile lies on the slide, and how its pixels are to be had."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from gigatile.settings.tiles import TileSettings
from gigatile.slides.reader import Slide, SlideError

# Up to this factor a slide's level 0 may be coarser than the wanted scale; beyond it,
# enlarging would show the model detail that no scanner saw.
MAX_ENLARGEMENT = 1.1
# A slide of more tiles is taken for damaged: 224 px tiles of a million by a million pixels.
MAX_TILES = 20_000_000


@dataclass(frozen=True)
class Grid:
    """Non-overlapping square tiles over a slide, from its top-left corner.

    Attributes:
        size: side of a tile's image, in pixels.
        mpp: micrometres per pixel of a tile's image, or None where the slide does not tell.
        extent: side of a tile in pixels of level 0; need not be whole.
        level: the level that is read.
        scale: pixels of level 0 that a pixel of that level spans, across and down.
        resampled: whether that level's pixels are resized to `size`.
        columns, rows: whole tiles across and down; tiles that would reach over the edge are not
            made.
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

        Every corner is rounded by itself, so that the error never adds up. Where the level's pixels
        are taken as they are, a corner is first put on the nearest one of them: what a tile shows
        begins at its corner to within half a pixel of level 0, also where a level's downsample is
        2.0005.
        """
        across, down = (
            np.rint(self._on_level(np.arange(count) * self.extent, scale)).astype(np.int64)
            for count, scale in zip((self.columns, self.rows), self.scale, strict=True)
        )
        y, x = np.meshgrid(down, across, indexing="ij")
        return np.stack([x.ravel(), y.ravel()], axis=1)

    def _on_level(self, places: np.ndarray, scale: float) -> np.ndarray:
        return places if self.resampled else np.rint(places / scale) * scale

    def boxes(self, corners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what is to be read of the level for the tiles at some corners.

        Args:
            corners: (n, 2) int64, of `corners`.

        Returns:
            Left, top, width, height in whole pixels of the level: (n, 4) int64; and what of it the
            tile spans, left, top, right, bottom, in pixels of that region: (n, 4) float64.
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

    def tile_of(self, region: np.ndarray, span: np.ndarray) -> np.ndarray:
        """Return the tile that a region holds, as `boxes` planned it: (size, size, 3) uint8."""
        if not self.resampled:
            return region
        # The span is fractional, so the image spans exactly `extent` whatever the level's scale.
        left, top, right, bottom = span.tolist()
        resized = Image.fromarray(region).resize(
            (self.size, self.size), Image.Resampling.BICUBIC, box=(left, top, right, bottom)
        )
        return np.asarray(resized)


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
        told = f"its objective, {power}x, is not in tiles.objectives" if power else "nor objective"
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
    if columns * rows > MAX_TILES:
        raise SlideError(
            f"its header gives a size of {slide.width}×{slide.height} px, which is "
            f"{columns * rows:,} tiles; the limit is {MAX_TILES:,}"
        )
    # The coarsest level that still has every detail of the tile; a level fits as it is when the
    # tile's sides in its pixels are `size` to within half a pixel.
    sides = [(extent / across, extent / down) for across, down in slide.scales]
    fine = [level for level, side in enumerate(sides) if min(side) > settings.size - 0.5]
    level = max(fine, default=0)
    resampled = max(abs(side - settings.size) for side in sides[level]) >= 0.5
    scale = slide.scales[level]
    return Grid(settings.size, wanted, extent, level, scale, resampled, columns, rows)
