"""Heat maps: one pixel for each tile, aligned with the tile on the slide.

Pages use pixels of level 0 as their unit. A heat map of `columns` × `rows` pixels is scaled to
`columns·extent` × `rows·extent` of these, so pixel (c, r) covers the tile of column c, row r. The
error is the half pixel by which the corner of a tile is rounded: of level 0, or of the level that
the tile was read from if it was not resampled. It does not accumulate across the slide.
"""

import io
from dataclasses import dataclass

import matplotlib
import numpy as np
from PIL import Image

from gigatile.errors import UserError
from gigatile.report.slides.inputs import TileScores
from gigatile.slides.state import TileGrid

# Viridis is perceptually uniform and safe for colour-blind readers. So is cividis, but its middle
# is grey like the tissue below.
COLOURS = matplotlib.colormaps["viridis"](np.arange(256), bytes=True)  # (256, 4) uint8


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels of level 0."""

    x: float
    y: float
    width: float
    height: float


def placement(grid: TileGrid) -> Box:
    """Return the rectangle of the heat map on the slide."""
    return Box(0, 0, grid.columns * grid.extent, grid.rows * grid.extent)


def cells(tiles: TileScores, grid: TileGrid, source: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the (column, row) of each tile: two arrays (n,) int64.

    Args:
        tiles: the scored tiles.
        grid: of the slide.
        source: file and slide, for messages.

    Raises:
        UserError: a tile is not on the grid, or two are in one cell.
    """
    column = np.rint(tiles.x / grid.extent).astype(np.int64)
    row = np.rint(tiles.y / grid.extent).astype(np.int64)
    # Half a pixel is the rounding of the corner. Without resampling, the tile starts at the nearest
    # pixel of the level that it was read from.
    across, down = (0.501 + (0 if grid.resampled else scale / 2) for scale in grid.scale)
    away = (abs(column * grid.extent - tiles.x) > across) | (
        abs(row * grid.extent - tiles.y) > down
    )
    outside = (column < 0) | (column >= grid.columns) | (row < 0) | (row >= grid.rows)
    wrong = np.flatnonzero(away | outside)
    if len(wrong):
        first = wrong[0]
        raise UserError(
            f"{source}: its scored tile at ({tiles.x[first]}, {tiles.y[first]}) is not on the "
            f"slide's grid of {grid.columns} × {grid.rows} tiles of {grid.extent:g} px; the scores "
            "belong to other tiles, run the evaluation again"
        )
    if len(np.unique(row * grid.columns + column)) < len(row):
        raise UserError(f"{source}: two scored tiles are in one cell of its grid")
    return column, row


def paint(values: np.ndarray, column: np.ndarray, row: np.ndarray, grid: TileGrid) -> bytes:
    """Return a PNG with one pixel for each cell of the grid; transparent without a tile.

    Args:
        values: (n,) scores from 0 to 1.
        column, row: (n,) cells of the scores.
    """
    pixels = np.zeros((grid.rows, grid.columns, 4), np.uint8)
    pixels[row, column] = COLOURS[np.rint(values * 255).astype(np.int64)]
    return png(pixels)


def colour_bar() -> bytes:
    """Return the colours from 0 to 1 as a PNG of 256 × 1 pixels."""
    return png(COLOURS[None])


def png(pixels: np.ndarray) -> bytes:
    """Encode (height, width, 4) uint8 RGBA as PNG, without metadata."""
    buffer = io.BytesIO()
    Image.fromarray(pixels, "RGBA").save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
