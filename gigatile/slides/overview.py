"""A whole slide at low resolution, read in blocks so that its size costs time and not memory.

Own tiles that reach over a block wait for the next one, up to `regions.KEPT_BYTES` of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from gigatile.slides.choosing import Reading, choose_reading
from gigatile.slides.reader import RegionError, Slide
from gigatile.slides.regions import TiffRegions

# Pixels of a level that are read at once have at most this side.
BLOCK = 2048
# Where a block cannot be read, its quarters are tried, down to this side.
LEAST_BLOCK = 32
# A block is given up at once if none of so many places across and down can be read; each read that
# fails has OpenSlide open the file again, and trying all quarters takes thousands of them.
PROBES = 4
# Side of the places that are compared with OpenSlide, in pixels of the level.
COMPARED_SIDE = 256


@dataclass
class Overview:
    """A slide at low resolution.

    Attributes:
        pixels: RGB, (height, width, 3) uint8; white where the slide cannot be read. The last row
            and column may reach over the slide's edge.
        downsample: how many pixels of level 0 one of them spans, across and down.
        unseen: (height, width) bool, true where the slide cannot be read.
        reading: how its level was read.
        error: what was told of the first such place, None where all was read.
    """

    pixels: np.ndarray
    downsample: tuple[float, float]
    unseen: np.ndarray
    reading: Reading
    error: RegionError | None = None


def read_overview(
    path: Path,
    slide: Slide,
    downsample: float,
    longest: int = 8192,
    tell: Callable[[], None] = lambda: None,
    max_unseen: float = 1,
) -> Overview:
    """Read the whole of a slide at low resolution.

    Args:
        path: the slide's file.
        slide: the same, open.
        downsample: wanted pixels of level 0 per pixel; the result is at least as fine.
        longest: pixels that the result has at most a side, also if that is coarser.
        tell: is called each time that a part of it was read.
        max_unseen: share of the slide that may be unreadable.

    Raises:
        RegionError: more than `max_unseen` cannot be read; the rest is not tried.
    """
    coarser = [max(scale) for scale in slide.scales]
    level = max(i for i, down in enumerate(coarser) if i == 0 or down <= downsample)
    width, height = slide.level_sizes[level]
    factor = max(1, int(downsample / coarser[level] + 1e-6), -(-max(width, height) // longest))
    side = max(1, BLOCK // factor) * factor
    blocks = np.array(
        [
            (left, top, min(side, width - left), min(side, height - top))
            for top in range(0, height, side)
            for left in range(0, width, side)
        ]
    )
    reading, own = choose_reading(path, slide, level, _places(width, height))
    across, down = slide.scales[level]
    shape = (-(-height // factor), -(-width // factor))
    found = Overview(
        np.full((*shape, 3), 255, np.uint8),
        (factor * across, factor * down),
        np.zeros(shape, bool),
        reading,
    )
    read = _Blocks(slide, level, factor, found, int(max_unseen * found.unseen.size))
    if own is None:
        for block in blocks.tolist():
            read.by_openslide(block)
            tell()
        return found
    try:
        for block, region in zip(blocks.tolist(), TiffRegions(own, blocks), strict=True):
            try:
                read.put(block, region())
            except RegionError:  # OpenSlide tells which part of it is lost
                read.by_openslide(block)
            tell()
    finally:
        own.close()
    return found


class _Blocks:
    """Blocks of a level, put where they belong in an overview."""

    def __init__(
        self, slide: Slide, level: int, factor: int, found: Overview, most_unseen: int
    ) -> None:
        self._slide = slide
        self._level = level
        self._factor = factor
        self._found = found
        self._unseen_left = most_unseen

    def put(self, block: list[int], pixels: np.ndarray) -> None:
        """Shrink a block's pixels, (height, width, 3) uint8, into the overview."""
        if self._factor > 1:
            pixels = np.asarray(Image.fromarray(pixels).reduce(self._factor))
        self._found.pixels[self._here(block)] = pixels

    def by_openslide(self, block: list[int]) -> None:
        """Read a block; if that fails, narrow down the part that cannot be read.

        Raises:
            RegionError: the first one, as soon as too much cannot be read.
        """
        left, top, width, height = block
        try:
            region = self._slide.region(left, top, self._level, width, height)
        except RegionError as error:
            self._found.error = self._found.error or error
            # In whole pixels of the overview.
            half = -(-max(width, height) // (2 * self._factor)) * self._factor
            least = half >= max(width, height) or half < LEAST_BLOCK
            if least or not self._any_place_readable(block):
                unseen = self._found.unseen[self._here(block)]
                unseen[:] = True
                self._unseen_left -= unseen.size
                if self._unseen_left < 0:
                    raise self._found.error from None
                return
            for y in range(top, top + height, half):
                for x in range(left, left + width, half):
                    size = min(half, left + width - x), min(half, top + height - y)
                    self.by_openslide([x, y, *size])
        else:
            self.put(block, np.asarray(region))

    def _any_place_readable(self, block: list[int]) -> bool:
        """Return whether any of some places in a block can be read; True of a small block."""
        left, top, width, height = block
        if min(width, height) < 2 * PROBES * LEAST_BLOCK:
            return True
        for row in range(PROBES):
            for column in range(PROBES):
                x = left + (2 * column + 1) * width // (2 * PROBES)
                y = top + (2 * row + 1) * height // (2 * PROBES)
                try:
                    self._slide.region(x, y, self._level, 1, 1)
                except RegionError:
                    continue
                return True
        return False

    def _here(self, block: list[int]) -> tuple[slice, slice]:
        left, top, width, height = (-(-side // self._factor) for side in block)
        return slice(top, top + height), slice(left, left + width)


def _places(width: int, height: int) -> np.ndarray:
    """Return four places of a level, a third of it from its edges, to compare: (4, 4) int64."""
    wide, high = min(COMPARED_SIDE, width), min(COMPARED_SIDE, height)
    return np.array(
        [
            ((width - wide) * column // 3, (height - high) * row // 3, wide, high)
            for row in (1, 2)
            for column in (1, 2)
        ]
    )
