"""Regions of one level in their order, as pixels: from the file's own tiles, or by OpenSlide.

Both ways give the same pixels; `gigatile.slides.tiff` says which files the first is for. A region
is found by iterating and becomes pixels when asked, which may be in another thread.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path

import numpy as np

from gigatile.slides.reader import RegionError, Slide, open_slide
from gigatile.slides.tiff import TiffLevel

# Gives (height, width, 3) uint8 RGB, white where no scanner saw anything, or raises RegionError.
Region = Callable[[], np.ndarray]

# Decoded tiles that are needed again wait for it up to this size; beyond, they are decoded again.
KEPT_BYTES = 192 << 20

_Decoded = np.ndarray | RegionError | None  # None: the file holds nothing of the tile


def reader_by_openslide(
    path: Path, level: int, close: contextlib.ExitStack
) -> Callable[[Sequence[int]], np.ndarray]:
    """Return what reads a region by OpenSlide; each thread that calls it opens the file once.

    Args:
        path: the slide's file.
        level: the level to read.
        close: closes the files; no thread may read any more then.
    """
    mine = threading.local()
    opening = threading.Lock()

    def slide() -> Slide:
        if not hasattr(mine, "slide"):
            with opening:
                mine.slide = close.enter_context(open_slide(path))
        return mine.slide

    def read(box: Sequence[int]) -> np.ndarray:
        left, top, width, height = box
        return np.asarray(slide().region(left, top, level, width, height))

    return read


def regions_by_openslide(
    read: Callable[[Sequence[int]], np.ndarray], boxes: np.ndarray
) -> Iterator[Region]:
    """Yield regions that OpenSlide reads.

    Args:
        read: of `reader_by_openslide`.
        boxes: left, top, width, height in pixels of the level: (n, 4) int64.
    """
    for box in boxes.tolist():
        yield partial(read, box)


def with_second_try(
    regions: Iterable[Region],
    read: Callable[[Sequence[int]], np.ndarray],
    boxes: np.ndarray,
) -> Iterator[Region]:
    """Yield regions of the file's own tiles; one that is refused is OpenSlide's to read or refuse.

    libjpeg's warnings count as damage to us, and some of them not to OpenSlide.
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
    """Regions from the file's own tiles, of which each is read once and decoded once."""

    def __init__(self, level: TiffLevel, boxes: np.ndarray, pool: Executor | None = None) -> None:
        """Plan which tile is needed how often.

        Args:
            level: the level to read.
            boxes: left, top, width, height in pixels of the level: (n, 4) int64.
            pool: where tiles are decoded; None: by whoever iterates.
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
        self._kept: dict[int, _Decoded | Future[_Decoded]] = {}
        self._most_kept = KEPT_BYTES // (level.tile_width * level.tile_height * 3)

    def __iter__(self) -> Iterator[Region]:
        """Yield each region; its pixels can be asked for in any thread."""
        for box, columns, rows in zip(
            self._boxes.tolist(), self._columns.tolist(), self._rows.tolist(), strict=True
        ):
            tiles = [
                (row, column, self._take(row * self._level.columns + column))
                for row in range(*rows)
                for column in range(*columns)
            ]
            yield partial(self._lay, box, tiles)

    def _take(self, tile: int) -> "_Decoded | Future[_Decoded]":
        """Return a tile for one of its uses; after the last one it is forgotten."""
        self._uses[tile] -= 1
        if tile in self._kept:
            return self._kept[tile] if self._uses[tile] else self._kept.pop(tile)
        found: _Decoded | Future[_Decoded]
        if self._level.missing(tile):
            found = None
        else:
            if tile not in self._streams:
                self._read_from(tile)
            stream = self._streams.pop(tile)
            found = (
                self._pool.submit(self._decode, tile, stream)
                if self._pool
                else self._decode(tile, stream)
            )
        # Regions come row by row: what is read last is needed again last. So it is not the first
        # ones that give way when there is no room, but those that would be the last.
        if self._uses[tile] and len(self._kept) < self._most_kept:
            self._kept[tile] = found
        return found

    def _read_from(self, tile: int) -> None:
        """Read a tile's stream, and with it those of the next ones in its row that are needed."""
        level = self._level
        end = (tile // level.columns + 1) * level.columns
        ahead = tile + 1 + np.flatnonzero(self._uses[tile + 1 : end])
        wanted = [tile] + [
            one
            for one in ahead.tolist()
            if one not in self._kept and one not in self._streams and not level.missing(one)
        ]
        self._streams.update(level.read_run(np.array(wanted)))

    def _decode(self, tile: int, stream: bytes) -> _Decoded:
        try:
            return self._level.decode(tile, stream)
        except RegionError as error:
            return error

    def _lay(
        self, box: list[int], tiles: list[tuple[int, int, "_Decoded | Future[_Decoded]"]]
    ) -> np.ndarray:
        """Lay decoded tiles side by side."""
        left, top, width, height = box
        level = self._level
        inside = left + width <= level.width and top + height <= level.height
        found = [one.result() if isinstance(one, Future) else one for *_, one in tiles]
        shape = (height, width, 3)
        whole = inside and not any(one is None for one in found)
        pixels = np.empty(shape, np.uint8) if whole else np.full(shape, 255, np.uint8)
        right, bottom = min(left + width, level.width), min(top + height, level.height)
        for (row, column, _), one in zip(tiles, found, strict=True):
            if one is None:
                continue
            if isinstance(one, RegionError):
                raise one
            x, y = column * level.tile_width, row * level.tile_height
            x0, x1 = max(x, left), min(x + level.tile_width, right)
            y0, y1 = max(y, top), min(y + level.tile_height, bottom)
            pixels[y0 - top : y1 - top, x0 - left : x1 - left] = one[
                y0 - y : y1 - y, x0 - x : x1 - x
            ]
        return pixels
