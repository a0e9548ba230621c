"""The pictures of a slide's page: the tiles with the highest scores, and the overview."""

import io
import math
from collections.abc import Collection
from pathlib import Path

import numpy as np
from PIL import Image

from gigatile.errors import UserError
from gigatile.records import read_tiles
from gigatile.report.slides.inputs import TileScores

# Limits that keep a page of 24 tiles and an overview well below 3 MB.
TILE_BYTES = 30_000
OVERVIEW_BYTES = 1_000_000

Corner = tuple[int, int]


def highest(tiles: TileScores, which: int, count: int) -> list[int]:
    """Return the indices of the `count` tiles with the highest scores of class `which`.

    Tiles with equal scores are in the order of rows and columns.
    """
    return np.argsort(-tiles.scores[:, which], kind="stable")[:count].tolist()


def pick(
    path: Path, wanted: Collection[Corner], most_bytes: int = TILE_BYTES
) -> dict[Corner, bytes]:
    """Return the JPEG of each wanted (x, y); reads one record at a time.

    Raises:
        UserError: the file is missing or damaged, or lacks a wanted tile.
    """
    missing = set(wanted)
    images: dict[Corner, bytes] = {}
    if not missing:
        return images
    for tile in read_tiles(path):
        corner = (tile.x, tile.y)
        if corner in missing:
            missing.remove(corner)
            images[corner] = smaller(tile.image, most_bytes, path)
            if not missing:
                break
    if missing:
        raise UserError(f"{path}: no tile at {min(missing)}, which the evaluation scored")
    return images


def read_overview(path: Path, width: int, height: int) -> bytes:
    """Return the JPEG of a slide's overview, scaled down if it is very large.

    Args:
        width, height: of the slide, in pixels of level 0.

    Raises:
        UserError: the file is missing or damaged, or its shape is not the slide's: a heat map would
            not be aligned with it.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    columns, rows = _size(data, path)
    if abs(rows - columns * height / width) > max(2, 0.01 * rows):
        raise UserError(
            f"{path}: {columns} × {rows} px is not the shape of the slide ({width} × {height} px)"
        )
    return smaller(data, OVERVIEW_BYTES, path)


def smaller(data: bytes, limit: int, path: Path) -> bytes:
    """Return a JPEG as it is, or scaled down until it has at most `limit` bytes."""
    if len(data) <= limit:
        _size(data, path)
        return data
    try:
        image = Image.open(io.BytesIO(data), formats=["JPEG"]).convert("RGB")
    except OSError as error:
        raise _damaged(path, error) from None
    share, shrunk = 1.0, data
    while len(shrunk) > limit and share > 0.05:
        # The size grows a little slower than the area; a second round is seldom needed.
        share *= min(0.9, math.sqrt(limit / len(shrunk)))
        size = (max(1, round(image.width * share)), max(1, round(image.height * share)))
        buffer = io.BytesIO()
        image.resize(size, Image.Resampling.LANCZOS).save(buffer, "JPEG", quality=85)
        shrunk = buffer.getvalue()
    return shrunk


def _size(data: bytes, path: Path) -> tuple[int, int]:
    try:
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
            image.load()  # the header of a truncated file is intact
            return image.size
    except OSError as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path}: contains a damaged JPEG ({type(error).__name__})")
