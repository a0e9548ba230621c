"""Scores on the slide: one pixel for each tile, placed exactly over the pixels that it scores.

The page draws in pixels of the slide's level 0. A heat map of `columns` × `rows` pixels is
stretched over `columns·extent` × `rows·extent` of them, so pixel (c, r) covers the tile of column
c, row r to within the half pixel by which the tile's corner was rounded: of level 0, or of the
level whose pixels the tile has as they are. The error does not add up across the slide, whatever
the downsample of a level or of the overview.
"""

import base64
import io
import math
from dataclasses import dataclass

import matplotlib
import numpy as np
from PIL import Image

from gigatile.errors import UserError
from gigatile.report.inputs import SlideTiles
from gigatile.slides.state import TileGrid

# Viridis: perceptually uniform, and read alike with any colour vision. So is cividis, but its
# middle is grey, as is the tissue under it.
COLOURS = matplotlib.colormaps["viridis"](np.arange(256), bytes=True)  # (256, 4) uint8


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels of level 0."""

    x: float
    y: float
    width: float
    height: float


def placement(grid: TileGrid) -> Box:
    """Return where the heat map of a grid lies on the slide."""
    return Box(0, 0, grid.columns * grid.extent, grid.rows * grid.extent)


def cells(tiles: SlideTiles, grid: TileGrid, whose: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the (column, row) of each tile: two arrays (n,) int64.

    Args:
        tiles: the scored tiles.
        grid: of the slide.
        whose: names file and slide in a message.

    Raises:
        UserError: a tile does not stand on the grid, or two stand in one place.
    """
    column = np.rint(tiles.x / grid.extent).astype(np.int64)
    row = np.rint(tiles.y / grid.extent).astype(np.int64)
    # Half a pixel is the rounding of the corner itself, and where the level's pixels were taken as
    # they are, half a pixel of it the way to the nearest one.
    across, down = (0.501 + (0 if grid.resampled else scale / 2) for scale in grid.scale)
    away = (abs(column * grid.extent - tiles.x) > across) | (
        abs(row * grid.extent - tiles.y) > down
    )
    outside = (column < 0) | (column >= grid.columns) | (row < 0) | (row >= grid.rows)
    wrong = np.flatnonzero(away | outside)
    if len(wrong):
        one = wrong[0]
        raise UserError(
            f"{whose}: its scored tile at ({tiles.x[one]}, {tiles.y[one]}) does not stand "
            f"on the slide's grid of {grid.columns} × {grid.rows} tiles of {grid.extent:g} px; the "
            "scores belong to other tiles, run the evaluation again"
        )
    if len(np.unique(row * grid.columns + column)) < len(row):
        raise UserError(f"{whose}: two scored tiles stand in one place of its grid")
    return column, row


def paint(values: np.ndarray, column: np.ndarray, row: np.ndarray, grid: TileGrid) -> bytes:
    """Return a PNG, one pixel for each place of the grid; transparent where there is no tile.

    Args:
        values: (n,) scores from 0 to 1.
        column, row: (n,) where each of them stands.
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


def data_uri(data: bytes, kind: str) -> str:
    """Return bytes as a data: address of the media type `kind`."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@dataclass(frozen=True)
class ScaleBar:
    """A bar of a round length; `share` is its part of the slide's width."""

    share: float
    text: str


def scale_bar(width: int, mpp: float) -> ScaleBar:
    """Choose the longest of 1, 2 or 5 · 10^k µm that is at most a quarter of the slide's width.

    Args:
        width: of the slide, in pixels of level 0.
        mpp: micrometres per pixel of level 0.
    """
    quarter = width * mpp / 4
    power = 10.0 ** math.floor(math.log10(quarter))
    length = max(step * power for step in (1, 2, 5) if step * power <= quarter * (1 + 1e-9))
    text = f"{length / 1000:g} mm" if length >= 1000 else f"{length:g} µm"
    return ScaleBar(length / mpp / width, text)
