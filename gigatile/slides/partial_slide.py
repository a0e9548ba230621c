"""A slide in an object store, of which only the parts that are read are fetched.

The partial copy is what OpenSlide and tifffile open. Its TIFF directories are fetched first; then,
before each read, the native tiles that it needs. This is for formats in which a level is one tiled
TIFF image, compressed so that a hole in place of a tile cannot be decoded. Other files are fetched
whole.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, cast

import numpy as np
import openslide
import tifffile

from gigatile.slides.tiff import FORMATS
from gigatile.stores.partial_copy import PartialCopy, PartialReader

# Zeros in place of a whole tile are an error for their decoders, never pixels. So if OpenSlide
# needs another tile than was thought, the slide is fetched whole.
COMPRESSIONS = (
    tifffile.COMPRESSION.JPEG,
    tifffile.COMPRESSION.APERIO_JP2000_YCBC,
    tifffile.COMPRESSION.APERIO_JP2000_RGB,
)
# OpenSlide hashes the native tiles of the coarsest level when it opens a slide, up to this size.
HASHED_BYTES = 5 << 20
# A whole file is fetched in parts of this size.
WHOLE_BYTES = 32 << 20
# OpenSlide may read neighbouring pixels, for interpolation.
MARGIN = 2


@dataclass(frozen=True)
class _TiledImage:
    """A tiled image in a TIFF file: its size, that of its tiles, and where they are in the file."""

    width: int
    height: int
    tile_width: int
    tile_height: int
    offsets: np.ndarray
    counts: np.ndarray

    def ranges(self, left: int, top: int, width: int, height: int) -> list[tuple[int, int]]:
        """Return the ranges of the file with the tiles of a region, with a margin."""
        columns = -(-self.width // self.tile_width)
        rows = -(-self.height // self.tile_height)
        first_column, last_column = _span(left, width, self.tile_width, columns)
        first_row, last_row = _span(top, height, self.tile_height, rows)
        tiles = [
            row * columns + column
            for row in range(first_row, last_row)
            for column in range(first_column, last_column)
        ]
        return self._ranges_of(tiles)

    def tiles_in(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges of the tiles that have a byte in a range of the file."""
        has = (self.offsets < end) & (self.offsets + self.counts > begin)
        return self._ranges_of(np.flatnonzero(has))

    def _ranges_of(self, tiles: Sequence[int] | np.ndarray) -> list[tuple[int, int]]:
        begins = self.offsets[tiles]
        return list(zip(begins.tolist(), (begins + self.counts[tiles]).tolist(), strict=True))


def _span(begin: int, length: int, tile: int, count: int) -> tuple[int, int]:
    first = max(0, (begin - MARGIN) // tile)
    last = min(count, -(-(begin + length + MARGIN) // tile))
    return first, max(first, last)


class PartialSlide:
    """The parts of a slide's file.

    Attributes:
        copy: the partial copy.
        is_whole: whether all of it was fetched.
    """

    def __init__(
        self, copy: PartialCopy, report_progress: Callable[[], None] = lambda: None
    ) -> None:
        """Fetch what is needed to open the slide.

        Args:
            copy: of its file.
            report_progress: called after each part of a large file.

        Raises:
            StoreError: the file cannot be read.
        """
        self.copy = copy
        self.is_whole = False
        self._report_progress = report_progress
        self._images = self._read_directories()
        if self._images is None:
            self.fetch_whole()

    def fetch_whole(self) -> None:
        """Fetch all of the file."""
        size = self.copy.remote.size
        for begin in range(0, size, WHOLE_BYTES):
            self.copy.fetch([(begin, min(begin + WHOLE_BYTES, size))])
            self._report_progress()
        self.is_whole = True

    def fetch_region(
        self, size: tuple[int, int], left: int, top: int, width: int, height: int
    ) -> None:
        """Fetch what a region needs.

        Args:
            size: width and height of the level, in pixels.
            left, top, width, height: of the region, in pixels of that level.

        Raises:
            StoreError: the file cannot be read.
        """
        if self.is_whole:
            return
        image = (self._images or {}).get(size)
        if image is None:
            self.fetch_whole()
        else:
            self.copy.fetch(image.ranges(left, top, width, height))

    def fetch_ranges(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch ranges of the file.

        Raises:
            StoreError: the file cannot be read.
        """
        if not self.is_whole:
            self.copy.fetch(ranges)

    def _read_directories(self) -> dict[tuple[int, int], _TiledImage] | None:
        """Fetch the TIFF directories; return the tiled images by size.

        None: the slide must be fetched whole.
        """
        vendor = None
        images: dict[tuple[int, int], _TiledImage] = {}
        reader = PartialReader(self.copy)
        try:
            with contextlib.closing(reader), tifffile.TiffFile(cast(IO[bytes], reader)) as tiff:
                for page in tiff.pages:
                    if not isinstance(page, tifffile.TiffPage):
                        return None
                    self.copy.fetch(
                        [
                            (tag.valueoffset, tag.valueoffset + tag.valuebytecount)
                            for tag in page.tags
                        ]
                    )
                    if not page.is_tiled:
                        continue
                    size = page.imagewidth, page.imagelength
                    image = _tiled_image(page)
                    if image is None or size in images:
                        return None
                    images[size] = image
            vendor = openslide.OpenSlide.detect_format(self.copy.path)
        except OSError:
            raise
        except Exception:
            return None  # OpenSlide reads or refuses what tifffile cannot read
        # The images of a Philips slide are padded to whole tiles: their sizes are not the levels'.
        if vendor not in FORMATS or vendor == "philips" or not images:
            return None
        # A decoder may accept a tile of which only the beginning is there: no tile is left so.
        for begin, end in self.copy.extents:
            for image in images.values():
                self.copy.fetch(image.tiles_in(begin, end))
        coarsest = images[min(images)]
        if coarsest.counts.sum() <= HASHED_BYTES:
            self.copy.fetch(coarsest.ranges(0, 0, coarsest.width, coarsest.height))
        return images


def _tiled_image(page: tifffile.TiffPage) -> _TiledImage | None:
    """Return a tiled image; None if holes in place of its tiles could be decoded."""
    if page.compression not in COMPRESSIONS or page.planarconfig != 1:
        return None
    offsets, counts = np.array(page.dataoffsets), np.array(page.databytecounts)
    image = _TiledImage(
        page.imagewidth, page.imagelength, page.tilewidth, page.tilelength, offsets, counts
    )
    columns = -(-image.width // image.tile_width)
    rows = -(-image.height // image.tile_height)
    whole = (
        offsets.dtype.kind in "iu"
        and counts.dtype.kind in "iu"
        and len(offsets) == len(counts) == columns * rows
        and min(offsets.min(), counts.min()) >= 0
        # OpenSlide renders a missing tile of an Aperio slide from another level.
        and counts.min() > 0
    )
    return image if whole else None
