"""Tiles out of regions: measured, judged, and encoded, in any number of threads, in their order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from gigatile.records.tile import encode_jpeg
from gigatile.slides.grid import Grid
from gigatile.slides.quality import Pixels, measure
from gigatile.slides.reader import RegionError
from gigatile.slides.regions import Region
from gigatile.slides.sorting import Rules, Verdict
from gigatile.slides.stain import Normaliser
from gigatile.slides.tiff import TiffLevel

# How far ahead the slide's own tiles are looked for that lie in the file one after the other.
RUN = 256

T = TypeVar("T")
R = TypeVar("R")

# A slide's own tile: its level, its number, and its stream, None where the file holds none.
OwnTile = tuple[TiffLevel, int, bytes | None]


@dataclass(frozen=True)
class Outcome:
    """What became of one tile that was read.

    Attributes:
        verdict: whether it is kept.
        measured: its pixels' measures, None where these were not needed or could not be read.
        image: the tile as JPEG, None if it is not kept.
        unreadable: why it could not be read, else None.
    """

    verdict: Verdict
    measured: Pixels | None = None
    image: bytes | None = None
    unreadable: str | None = None


class Cutter:
    """What is done with each tile, in any thread."""

    def __init__(
        self, grid: Grid, quality: int, rules: Rules, normaliser: Normaliser | None
    ) -> None:
        self._grid = grid
        self._quality = quality
        self._rules = rules
        self._normaliser = normaliser

    def encode(self, found: tuple[Region, np.ndarray]) -> Outcome:
        """Measure the tile in a region, and encode it if it is kept."""
        region, span = found
        try:
            tile = self._grid.tile_of(region(), span)
        except RegionError as error:
            return _unreadable(error)
        measured = measure(tile)
        verdict = self._rules.of_pixels(measured)
        if verdict.dropped:
            return Outcome(verdict, measured)
        if self._normaliser:
            tile = self._normaliser(tile)
        return Outcome(verdict, measured, encode_jpeg(tile, self._quality))

    def keep(self, found: OwnTile) -> Outcome:
        """Take a slide's own JPEG as it is; decode it only if a rule asks what it shows."""
        level, tile, stream = found
        try:
            if stream is None:
                raise RegionError("the file holds nothing of its own tile there")
            image = level.own(tile, stream)
            measured = measure(level.decode(tile, stream)) if self._rules.reads_pixels else None
        except RegionError as error:
            return _unreadable(error)
        verdict = Verdict(None, ()) if measured is None else self._rules.of_pixels(measured)
        return Outcome(verdict, measured, None if verdict.dropped else image)


def _unreadable(error: RegionError) -> Outcome:
    return Outcome(Verdict("unreadable", ()), unreadable=" ".join(str(error).split()))


def own_tiles(level: TiffLevel, boxes: np.ndarray) -> Iterator[OwnTile]:
    """Yield the slide's own tiles as its file holds them.

    Args:
        level: the level to read.
        boxes: left, top, width, height in pixels of the level, each of them one tile: (n, 4) int64.
    """
    numbers = boxes[:, 1] // level.tile_height * level.columns + boxes[:, 0] // level.tile_width
    run: dict[int, bytes] = {}
    for at, tile in enumerate(numbers.tolist()):
        if level.missing(tile):
            yield level, tile, None
            continue
        if tile not in run:
            ahead = numbers[at : at + RUN]
            run = level.read_run(ahead[~level.missing(ahead)])
        yield level, tile, run.pop(tile)


def in_order(
    items: Iterable[T], work: Callable[[T], R], pool: Executor | None, ahead: int
) -> Iterator[R]:
    """Yield `work` of each item in their order; in a pool, up to `ahead` items before they are due.

    An item may wait for what was given to the pool before it.
    """
    if pool is None:
        yield from map(work, items)
        return
    due: deque = deque()
    for item in items:
        due.append(pool.submit(work, item))
        if len(due) >= ahead:
            yield due.popleft().result()
    while due:
        yield due.popleft().result()
