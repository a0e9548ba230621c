"""Read a whole slide at low resolution, block by block, with bounded memory.

Native tiles that reach into the next block are kept until then, up to `regions.CACHE_BYTES`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from gigatile.slides.reader import RegionError, Slide
from gigatile.slides.reader_selection import choose_reader
from gigatile.slides.regions import TiffRegions
from gigatile.slides.state import ReaderChoice

# Longest side of a block, in pixels of the level.
BLOCK = 2048
# If a block cannot be read, its quarters are tried, down to this side.
MIN_BLOCK = 32
# A block is given up if none of PROBES × PROBES pixels can be read. After each failed read,
# OpenSlide has to open the file again, and trying all quarters takes thousands of reads.
PROBES = 4
# Side of the regions that are compared with OpenSlide, in pixels of the level.
COMPARED_SIDE = 256


@dataclass
class Overview:
    """A slide at low resolution.

    Attributes:
        pixels: RGB, (height, width, 3) uint8; white where the slide cannot be read. The last row
            and column may extend beyond the slide's edge.
        downsample: level-0 pixels per pixel, across and down.
        unreadable: (height, width) bool, true where the slide cannot be read.
        reader: the reader of its level.
        error: the error at the first unreadable part; None if there is none.
    """

    pixels: np.ndarray
    downsample: tuple[float, float]
    unreadable: np.ndarray
    reader: ReaderChoice
    error: RegionError | None = None


def read_overview(
    path: Path,
    slide: Slide,
    downsample: float,
    longest: int = 8192,
    report_progress: Callable[[], None] = lambda: None,
    max_unreadable: float = 1,
) -> Overview:
    """Read a whole slide at low resolution.

    Args:
        path: the slide's file.
        slide: the same, open.
        downsample: requested level-0 pixels per pixel; the result is at least as fine.
        longest: the longest side of the result in pixels, even if it is then coarser.
        report_progress: called after each block.
        max_unreadable: the fraction of the slide that may be unreadable.

    Raises:
        RegionError: more than `max_unreadable` cannot be read; the rest is not tried.
    """
    downsamples = [max(scale) for scale in slide.scales]
    level = max(i for i, down in enumerate(downsamples) if i == 0 or down <= downsample)
    width, height = slide.level_sizes[level]
    factor = max(1, int(downsample / downsamples[level] + 1e-6), -(-max(width, height) // longest))
    side = max(1, BLOCK // factor) * factor
    blocks = np.array(
        [
            (left, top, min(side, width - left), min(side, height - top))
            for top in range(0, height, side)
            for left in range(0, width, side)
        ]
    )
    choice, native = choose_reader(path, slide, level, _compared_regions(width, height))
    across, down = slide.scales[level]
    shape = (-(-height // factor), -(-width // factor))
    overview = Overview(
        np.full((*shape, 3), 255, np.uint8),
        (factor * across, factor * down),
        np.zeros(shape, bool),
        choice,
    )
    limit = int(max_unreadable * overview.unreadable.size)
    reader = _BlockReader(slide, level, factor, overview, limit)
    if native is None:
        for block in blocks.tolist():
            reader.read_with_openslide(block)
            report_progress()
        return overview
    try:
        for block, region in zip(blocks.tolist(), TiffRegions(native, blocks), strict=True):
            try:
                reader.put(block, region())
            except RegionError:  # OpenSlide finds the part that cannot be read
                reader.read_with_openslide(block)
            report_progress()
    finally:
        native.close()
    return overview


class _BlockReader:
    """Reads blocks of a level into an overview."""

    def __init__(
        self, slide: Slide, level: int, factor: int, overview: Overview, max_unreadable: int
    ) -> None:
        self._slide = slide
        self._level = level
        self._factor = factor
        self._overview = overview
        self._unreadable_left = max_unreadable

    def put(self, block: list[int], pixels: np.ndarray) -> None:
        """Shrink a block's pixels, (height, width, 3) uint8, into the overview."""
        if self._factor > 1:
            pixels = np.asarray(Image.fromarray(pixels).reduce(self._factor))
        self._overview.pixels[self._slices(block)] = pixels

    def read_with_openslide(self, block: list[int]) -> None:
        """Read a block; if that fails, narrow down the part that cannot be read.

        Raises:
            RegionError: the first error, as soon as too much cannot be read.
        """
        left, top, width, height = block
        try:
            region = self._slide.region(left, top, self._level, width, height)
        except RegionError as error:
            self._overview.error = self._overview.error or error
            # A multiple of the factor, so that quarters are whole pixels of the overview.
            half = -(-max(width, height) // (2 * self._factor)) * self._factor
            smallest = half >= max(width, height) or half < MIN_BLOCK
            if smallest or not self._partly_readable(block):
                unreadable = self._overview.unreadable[self._slices(block)]
                unreadable[:] = True
                self._unreadable_left -= unreadable.size
                if self._unreadable_left < 0:
                    raise self._overview.error from None
                return
            for y in range(top, top + height, half):
                for x in range(left, left + width, half):
                    size = min(half, left + width - x), min(half, top + height - y)
                    self.read_with_openslide([x, y, *size])
        else:
            self.put(block, np.asarray(region))

    def _partly_readable(self, block: list[int]) -> bool:
        """Return whether any of some pixels in a block can be read; True for a small block."""
        left, top, width, height = block
        if min(width, height) < 2 * PROBES * MIN_BLOCK:
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

    def _slices(self, block: list[int]) -> tuple[slice, slice]:
        left, top, width, height = (-(-side // self._factor) for side in block)
        return slice(top, top + height), slice(left, left + width)


def _compared_regions(width: int, height: int) -> np.ndarray:
    """Return four regions of a level, at a third of it from its edges: (4, 4) int64."""
    wide, high = min(COMPARED_SIDE, width), min(COMPARED_SIDE, height)
    return np.array(
        [
            ((width - wide) * column // 3, (height - high) * row // 3, wide, high)
            for row in (1, 2)
            for column in (1, 2)
        ]
    )
