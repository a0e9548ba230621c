"""Read regions of one level in order: from native tiles of the file, or with OpenSlide.

Both give the same pixels; see `gigatile.slides.tiff` for the files with native tiles. A region is
yielded as a function that returns its pixels, so that it can be decoded in another thread.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path

import numpy as np

from gigatile.slides.reader import Parts, RegionError, Slide, open_slide
from gigatile.slides.tiff import TiffLevel

# Returns (height, width, 3) uint8 RGB, white where nothing was scanned, or raises RegionError.
Region = Callable[[], np.ndarray]

# Limit of the cache of decoded tiles; tiles that don't fit are decoded again.
CACHE_BYTES = 192 << 20

_Decoded = np.ndarray | RegionError | None  # None: the file has no data for the tile


def openslide_reader(
    path: Path, level: int, close: contextlib.ExitStack, parts: Parts | None = None
) -> Callable[[Sequence[int]], np.ndarray]:
    """Return a function that reads a region with OpenSlide; each thread opens the file once.

    Args:
        path: the slide's file.
        level: the level to read.
        close: closes the files; no thread may be reading then.
        parts: of a slide in a store; see `Slide`.
    """
    local = threading.local()
    lock = threading.Lock()

    def slide() -> Slide:
        if not hasattr(local, "slide"):
            with lock:
                local.slide = close.enter_context(open_slide(path, parts))
        return local.slide

    def read(box: Sequence[int]) -> np.ndarray:
        left, top, width, height = box
        return np.asarray(slide().region(left, top, level, width, height))

    return read


def openslide_regions(
    read: Callable[[Sequence[int]], np.ndarray], boxes: np.ndarray
) -> Iterator[Region]:
    """Yield regions that OpenSlide reads.

    Args:
        read: from `openslide_reader`.
        boxes: left, top, width, height in pixels of the level: (n, 4) int64.
    """
    for box in boxes.tolist():
        yield partial(read, box)


def with_openslide_fallback(
    regions: Iterable[Region],
    read: Callable[[Sequence[int]], np.ndarray],
    boxes: np.ndarray,
) -> Iterator[Region]:
    """Yield regions from native tiles; if one cannot be read, OpenSlide reads it.

    The native reader treats libjpeg's warnings as damage; OpenSlide accepts some of them.
    """

    def pixels(region: Region, box: Sequence[int]) -> np.ndarray:
        try:
            return region()
        except RegionError as error:
            try:
                return read(box)
            except RegionError:
                raise error from None

    for region, box in zip(regions, boxes.tolist(), strict=True):
        yield partial(pixels, region, box)


class TiffRegions:
    """Regions from native tiles. Each tile is read and decoded once, as far as the cache allows."""

    def __init__(self, level: TiffLevel, boxes: np.ndarray, pool: Executor | None = None) -> None:
        """Count how often each tile is used.

        Args:
            level: the level to read.
            boxes: left, top, width, height in pixels of the level: (n, 4) int64.
            pool: decodes the tiles; None: the iterating thread decodes them.
        """
        self._level = level
        self._boxes = boxes
        self._pool = pool
        left, top, width, height = boxes.T
        self._columns = np.stack(
            [left // level.tile_width, -(-(left + width) // level.tile_width)], axis=1
        ).clip(0, level.columns)
        self._rows = np.stack(
            [top // level.tile_height, -(-(top + height) // level.tile_height)], axis=1
        ).clip(0, level.rows)
        self._uses = np.zeros(level.rows * level.columns, np.int32)
        grid = self._uses.reshape(level.rows, level.columns)
        for (c0, c1), (r0, r1) in zip(self._columns, self._rows, strict=True):
            grid[r0:r1, c0:c1] += 1
        self._streams: dict[int, bytes] = {}
        self._cache: dict[int, _Decoded | Future[_Decoded]] = {}
        self._cache_size = CACHE_BYTES // (level.tile_width * level.tile_height * 3)

    def __iter__(self) -> Iterator[Region]:
        """Yield each region; any thread may call it for its pixels."""
        for box, columns, rows in zip(
            self._boxes.tolist(), self._columns.tolist(), self._rows.tolist(), strict=True
        ):
            tiles = [
                (row, column, self._take(row * self._level.columns + column))
                for row in range(*rows)
                for column in range(*columns)
            ]
            yield partial(self._assemble, box, tiles)

    def _take(self, tile: int) -> "_Decoded | Future[_Decoded]":
        """Return a tile for one of its uses; remove it from the cache after the last one."""
        self._uses[tile] -= 1
        if tile in self._cache:
            return self._cache[tile] if self._uses[tile] else self._cache.pop(tile)
        decoded: _Decoded | Future[_Decoded]
        if self._level.missing(tile):
            decoded = None
        else:
            if tile not in self._streams:
                self._read_ahead(tile)
            stream = self._streams.pop(tile)
            decoded = (
                self._pool.submit(self._decode, tile, stream)
                if self._pool
                else self._decode(tile, stream)
            )
        # Regions are in row order, so the tile that is read last is used again last. A full cache
        # therefore keeps the older tiles and rejects the new one.
        if self._uses[tile] and len(self._cache) < self._cache_size:
            self._cache[tile] = decoded
        return decoded

    def _read_ahead(self, tile: int) -> None:
        """Read a tile's stream, together with the next tiles of its row that are used."""
        level = self._level
        end = (tile // level.columns + 1) * level.columns
        ahead = tile + 1 + np.flatnonzero(self._uses[tile + 1 : end])
        wanted = [tile] + [
            other
            for other in ahead.tolist()
            if other not in self._cache and other not in self._streams and not level.missing(other)
        ]
        self._streams.update(level.read_run(np.array(wanted)))

    def _decode(self, tile: int, stream: bytes) -> _Decoded:
        try:
            return self._level.decode(tile, stream)
        except RegionError as error:
            return error

    def _assemble(
        self, box: list[int], tiles: list[tuple[int, int, "_Decoded | Future[_Decoded]"]]
    ) -> np.ndarray:
        """Return the pixels of a box from its decoded tiles."""
        left, top, width, height = box
        level = self._level
        inside = left + width <= level.width and top + height <= level.height
        decoded = [tile.result() if isinstance(tile, Future) else tile for *_, tile in tiles]
        shape = (height, width, 3)
        covered = inside and not any(tile is None for tile in decoded)
        pixels = np.empty(shape, np.uint8) if covered else np.full(shape, 255, np.uint8)
        right, bottom = min(left + width, level.width), min(top + height, level.height)
        for (row, column, _), tile in zip(tiles, decoded, strict=True):
            if tile is None:
                continue
            if isinstance(tile, RegionError):
                raise tile
            x, y = column * level.tile_width, row * level.tile_height
            x0, x1 = max(x, left), min(x + level.tile_width, right)
            y0, y1 = max(y, top), min(y + level.tile_height, bottom)
            pixels[y0 - top : y1 - top, x0 - left : x1 - left] = tile[
                y0 - y : y1 - y, x0 - x : x1 - x
            ]
        return pixels
