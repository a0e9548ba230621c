"""The tiles that speak loudest: chosen by their scores, then only those picked from the records."""

import io
import math
from collections.abc import Collection
from pathlib import Path

import numpy as np
from PIL import Image

from gigatile.errors import UserError
from gigatile.records import read_tiles
from gigatile.report.inputs import SlideTiles

# A page of 24 tiles and an overview stays well below 3 MB.
TILE_BYTES = 30_000
OVERVIEW_BYTES = 1_000_000

Place = tuple[int, int]


def highest(tiles: SlideTiles, which: int, count: int) -> list[int]:
    """Return the indices of the `count` tiles with the highest scores of class `which`.

    Equal scores stand in the order of rows and columns.
    """
    return np.argsort(-tiles.scores[:, which], kind="stable")[:count].tolist()


def pick(path: Path, wanted: Collection[Place]) -> dict[Place, bytes]:
    """Return the JPEG of each wanted (x, y); one record is held at a time.

    Raises:
        UserError: the file is missing or damaged, or lacks a wanted tile.
    """
    left = set(wanted)
    found: dict[Place, bytes] = {}
    if not left:
        return found
    for tile in read_tiles(path):
        place = (tile.x, tile.y)
        if place in left:
            left.remove(place)
            found[place] = smaller(tile.image, TILE_BYTES, path)
            if not left:
                break
    if left:
        raise UserError(f"{path}: no tile at {min(left)}, which the evaluation scored")
    return found


def read_overview(path: Path, width: int, height: int) -> bytes:
    """Return the JPEG of a slide's overview, made smaller where it is very large.

    Args:
        width, height: of the slide, in pixels of level 0.

    Raises:
        UserError: the file is missing or damaged, or its shape is not the slide's, so that a heat
            map over it would lie in the wrong place.
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
        # The bytes grow a little slower than the area; a second round is seldom needed.
        share *= min(0.9, math.sqrt(limit / len(shrunk)))
        size = (max(1, round(image.width * share)), max(1, round(image.height * share)))
        buffer = io.BytesIO()
        image.resize(size, Image.Resampling.LANCZOS).save(buffer, "JPEG", quality=85)
        shrunk = buffer.getvalue()
    return shrunk


def _size(data: bytes, path: Path) -> tuple[int, int]:
    try:
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
            image.load()  # a file cut short has a sound header
            return image.size
    except OSError as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path}: holds a damaged JPEG ({type(error).__name__})")
