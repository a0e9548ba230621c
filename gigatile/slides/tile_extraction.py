"""Extract tiles from regions: measure, filter and encode them, in parallel and in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from gigatile.records.tile import encode_jpeg
from gigatile.slides.appearance import colour_of
from gigatile.slides.grid import Grid
from gigatile.slides.quality import PixelMeasures, measure
from gigatile.slides.reader import RegionError
from gigatile.slides.regions import Region
from gigatile.slides.stain import Normaliser
from gigatile.slides.tiff import TiffLevel
from gigatile.slides.tile_filter import FilterRules, Verdict

# Native tiles among which `read_native_tiles` looks for tiles that are adjacent in the file.
LOOKAHEAD = 256

T = TypeVar("T")
R = TypeVar("R")

# A native tile: its level, its index, and its JPEG stream; None if the file has no data for it.
NativeTile = tuple[TiffLevel, int, bytes | None]


@dataclass(frozen=True)
class TileResult:
    """The result of extracting one tile.

    Attributes:
        verdict: whether it is kept.
        measures: of its pixels; None if they were not needed or could not be read.
        colour: of a tile that is kept, as it is encoded; None: as for `measures`.
        image: the tile as JPEG, None if it is dropped.
        unreadable: why it could not be read, else None.
    """

    verdict: Verdict
    measures: PixelMeasures | None = None
    colour: np.ndarray | None = None
    image: bytes | None = None
    unreadable: str | None = None


class TileEncoder:
    """Measures, filters and encodes tiles; thread-safe."""

    def __init__(
        self, grid: Grid, quality: int, rules: FilterRules, normaliser: Normaliser | None
    ) -> None:
        self._grid = grid
        self._quality = quality
        self._rules = rules
        self._normaliser = normaliser

    def encode(self, item: tuple[Region, np.ndarray]) -> TileResult:
        """Measure the tile in a region, and encode it if it is kept.

        Args:
            item: the region, and the tile's span in it (see `Grid.boxes`).
        """
        region, span = item
        try:
            tile = self._grid.resize_to_tile(region(), span)
        except RegionError as error:
            return _unreadable(error)
        measures = measure(tile)
        verdict = self._rules.judge_pixels(measures)
        if verdict.dropped:
            return TileResult(verdict, measures)
        if self._normaliser:
            tile = self._normaliser(tile)
        return TileResult(verdict, measures, colour_of(tile), encode_jpeg(tile, self._quality))

    def keep_native(self, native: NativeTile) -> TileResult:
        """Keep the JPEG of a native tile unchanged; decode it only if a rule needs its pixels."""
        level, tile, stream = native
        try:
            if stream is None:
                raise RegionError("the file has no data for this native tile")
            image = level.clean_stream(tile, stream)
            pixels = level.decode(tile, stream) if self._rules.reads_pixels else None
        except RegionError as error:
            return _unreadable(error)
        if pixels is None:
            return TileResult(Verdict(None, ()), image=image)
        measures = measure(pixels)
        verdict = self._rules.judge_pixels(measures)
        kept = None if verdict.dropped else image
        return TileResult(verdict, measures, colour_of(pixels), kept)


def _unreadable(error: RegionError) -> TileResult:
    return TileResult(Verdict("unreadable", ()), unreadable=" ".join(str(error).split()))


def read_native_tiles(level: TiffLevel, boxes: np.ndarray) -> Iterator[NativeTile]:
    """Yield the compressed native tiles of a level.

    Args:
        level: the level to read.
        boxes: left, top, width, height in pixels of the level, one native tile each: (n, 4) int64.
    """
    tiles = boxes[:, 1] // level.tile_height * level.columns + boxes[:, 0] // level.tile_width
    streams: dict[int, bytes] = {}
    for position, tile in enumerate(tiles.tolist()):
        if level.missing(tile):
            yield level, tile, None
            continue
        if tile not in streams:
            ahead = tiles[position : position + LOOKAHEAD]
            streams = level.read_run(ahead[~level.missing(ahead)])
        yield level, tile, streams.pop(tile)


def map_in_order(
    function: Callable[[T], R], items: Iterable[T], pool: Executor | None, ahead: int
) -> Iterator[R]:
    """Yield `function(item)` for all items in order, like `map`.

    With a pool, up to `ahead` items are submitted before their results are needed. An item may wait
    for tasks that were submitted to the pool before it.
    """
    if pool is None:
        yield from map(function, items)
        return
    pending: deque = deque()
    for item in items:
        pending.append(pool.submit(function, item))
        if len(pending) >= ahead:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()
