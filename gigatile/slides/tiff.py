"""The compressed tiles of a TIFF slide, read as they are: each is decoded once, straight to RGB.

OpenSlide stays the reference. This is for the files where it does nothing but decode JPEG tiles and
lay them side by side, and gives the same pixels several times faster: no detour over transparent
pixels, and no tile decoded again for each neighbour that it reaches into.
"""

import os
from pathlib import Path

import numpy as np
import simplejpeg
import tifffile

from gigatile.slides.jpeg import clean_header, clean_pixels, header_of
from gigatile.slides.reader import RegionError, Slide, SlideError

# Formats in which a level is one image of the file, its tiles side by side. In others OpenSlide
# shifts tiles that overlap (Ventana), or lays several images on one canvas (Leica).
FORMATS = ("aperio", "generic-tiff", "philips")
# Of what lies in the file one after the other so much is read at once, also over gaps: few large
# reads suit a disk that is far away.
READ_BYTES = 1 << 20
GAP_BYTES = 64 << 10


class NotTiled(Exception):
    """A level is not laid out so that its tiles can be read as they are; the message says why."""


class TiffLevel:
    """A level of a slide: JPEG tiles of one size, row by row.

    Attributes:
        width, height: of the level, in pixels.
        tile_width, tile_height: of the file's own tiles.
        columns, rows: of these tiles; the last ones reach over the level's edge.
    """

    def __init__(self, path: Path, slide: Slide, level: int) -> None:
        """Find the level of an open slide in the directory of its file.

        Raises:
            NotTiled: with the reason.
        """
        if slide.vendor not in FORMATS:
            raise NotTiled(f"a file of the format {slide.vendor}")
        page = _page(path, slide, level)
        self.width, self.height = slide.level_sizes[level]
        self.tile_width, self.tile_height = page.tilewidth, page.tilelength
        self.columns = -(-page.imagewidth // self.tile_width)
        self.rows = -(-page.imagelength // self.tile_height)
        try:
            self._offsets = np.array(page.dataoffsets, np.int64)
            self._counts = np.array(page.databytecounts, np.int64)
        except (TypeError, ValueError, OverflowError):
            raise NotTiled("its directory has no numbers where its tiles lie") from None
        if self._offsets.ndim != 1 or self._offsets.shape != self._counts.shape:
            raise NotTiled("its directory has no place and size for each tile")
        if min(self._offsets.min(initial=0), self._counts.min(initial=0)) < 0:
            raise NotTiled("its directory has negative places or sizes of tiles")
        if len(self._offsets) != self.columns * self.rows:
            raise NotTiled(
                f"{len(self._offsets)} tiles where {self.columns} × {self.rows} are needed"
            )
        if slide.vendor == "aperio" and level > 0 and (self._counts == 0).any():
            raise NotTiled("it lacks tiles that OpenSlide draws from the next finer level")
        tables = page.jpegtables
        ycbcr = page.photometric == tifffile.PHOTOMETRIC.YCBCR
        try:
            self._header = header_of(tables, ycbcr)
        except ValueError as error:
            raise NotTiled(f"its tables of JPEG: {error}") from None
        self._last = (b"", b"")
        self._failed: str | None = None
        self._file = os.open(path, os.O_RDONLY)
        self._end = os.fstat(self._file).st_size

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def missing(self, tile: int) -> bool:
        """Return whether the file holds nothing of a tile: no scanner saw it."""
        return self._counts[tile] == 0

    def holds(self, boxes: np.ndarray) -> np.ndarray:
        """Return for each box whether the file holds any tile that it reaches into.

        Args:
            boxes: left, top, width, height in pixels of the level: (n, 4) int64.

        Returns:
            (n,) bool.
        """
        # Sums over all tiles above and left of each corner, so that a box costs four look-ups.
        held = np.zeros((self.rows + 1, self.columns + 1), np.int64)
        stored = (self._counts > 0).reshape(self.rows, self.columns)
        held[1:, 1:] = stored.cumsum(axis=0).cumsum(axis=1)
        left, top, width, height = boxes.T
        x0, x1 = left // self.tile_width, -(-(left + width) // self.tile_width)
        y0, y1 = top // self.tile_height, -(-(top + height) // self.tile_height)
        (x0, x1), (y0, y1) = (
            np.clip((x0, x1), 0, self.columns),
            np.clip((y0, y1), 0, self.rows),
        )
        return held[y1, x1] - held[y0, x1] - held[y1, x0] + held[y0, x0] > 0

    def read_run(self, tiles: np.ndarray) -> dict[int, bytes]:
        """Return the streams of the first of some tiles and of those that lie close behind it.

        Args:
            tiles: numbers of tiles that the file holds, (n,) int64; n at least 1.

        Returns:
            The first tile's stream, and others in their order up to one that lies elsewhere in the
            file. One over whose end the file ends is shorter than it should be.
        """
        offsets, counts = self._offsets[tiles], self._counts[tiles]
        ends = offsets + counts
        gaps = offsets[1:] - ends[:-1]
        near = (gaps >= 0) & (gaps <= GAP_BYTES) & (ends[1:] - offsets[0] <= READ_BYTES)
        run = len(tiles) if near.all() else 1 + int(near.argmin())
        start = int(offsets[0])
        # Never more than the file has: a damaged directory can state any number of bytes.
        size = max(0, min(int(ends[run - 1]), self._end) - start)
        try:
            data = os.pread(self._file, size, start)
        except OSError as error:
            # As of a file that is too short: whoever makes a stream of it says which tile it was.
            self._failed = error.strerror
            data = b""
        return {
            int(tile): data[begin - start : end - start]
            for tile, begin, end in zip(tiles[:run], offsets[:run], ends[:run], strict=True)
        }

    def stream(self, tile: int, found: bytes) -> bytes:
        """Return a tile as JPEG that any decoder reads.

        Raises:
            RegionError: it is damaged.
        """
        if len(found) < self._counts[tile]:
            why = self._failed or "the file ends inside it"
            raise RegionError(f"{self._named(tile)}: {why}")
        # Most tiles of a level begin alike, up to the marker before their pixels, so the last
        # header is mostly this one's, too.
        raw, clean = self._last
        if not raw or not found.startswith(raw):
            try:
                own, pixels = clean_header(found)
            except ValueError as error:
                raise RegionError(f"{self._named(tile)}: {error}") from None
            raw, clean = self._last = (
                found[: pixels + 2],
                self._header + own + found[pixels : pixels + 2],
            )
        return clean + found[len(raw) :]

    def own(self, tile: int, found: bytes) -> bytes:
        """Return a tile as JPEG that any decoder reads, and nothing but its pixels is left in it.

        Raises:
            RegionError: its header or its end is damaged; its pixels are not looked at.
        """
        whole = self.stream(tile, found)
        try:
            clean, at = clean_header(found)
            pixels = clean_pixels(found, at, self.tile_width, self.tile_height)
        except ValueError as error:
            raise RegionError(f"{self._named(tile)}: {error}") from None
        return whole[: len(self._header) + len(clean)] + pixels

    def decode(self, tile: int, found: bytes) -> np.ndarray:
        """Return the pixels of a tile: (tile_height, tile_width, 3) uint8 RGB.

        Raises:
            RegionError: it is damaged, also where libjpeg could make a picture of it.
        """
        stream = self.stream(tile, found)
        try:
            pixels = simplejpeg.decode_jpeg(stream, strict=True)
        except ValueError as error:
            raise RegionError(f"{self._named(tile)}: {error}") from None
        if pixels.shape != (self.tile_height, self.tile_width, 3):
            raise RegionError(
                f"{self._named(tile)}: it has {pixels.shape[1]}×{pixels.shape[0]} px where the "
                f"level's tiles have {self.tile_width}×{self.tile_height}"
            )
        return pixels

    def _named(self, tile: int) -> str:
        row, column = divmod(tile, self.columns)
        return f"its own tile of column {column}, row {row} cannot be read"


def check_directories(path: Path, slide: Slide) -> None:
    """Check that the file lists as many tiles as its sizes need.

    A false size is found so before anything is read; OpenSlide would lay the tiles in wrong places,
    and draw glass for those that are not there.

    Raises:
        SlideError: another number of tiles (TIFF 6.0, section 15).
    """
    if slide.vendor not in FORMATS:
        return
    try:
        with tifffile.TiffFile(path) as tiff:
            pages = [
                (
                    page.imagewidth,
                    page.imagelength,
                    -(-page.imagewidth // page.tilewidth) * -(-page.imagelength // page.tilelength),
                    page.samplesperpixel if page.planarconfig == 2 else 1,
                    len(page.dataoffsets),
                )
                for page in tiff.pages
                if isinstance(page, tifffile.TiffPage) and page.is_tiled
            ]
    except Exception:
        return  # whatever tifffile cannot read, OpenSlide reads or refuses
    for width, height, tiles, planes, listed in pages:
        if listed != tiles * planes:
            raise SlideError(
                f"its directory contradicts itself: an image of {width}×{height} px needs "
                f"{tiles * planes:,} tiles, and {listed:,} are listed"
            )


def _page(path: Path, slide: Slide, level: int) -> tifffile.TiffPage:
    try:
        with tifffile.TiffFile(path) as tiff:
            pages = [
                page for page in tiff.pages if isinstance(page, tifffile.TiffPage) and page.is_tiled
            ]
            if slide.vendor == "philips":  # in order, and padded until they fill whole tiles
                pages = pages[level : level + 1]
            else:
                size = slide.level_sizes[level]
                pages = [page for page in pages if (page.imagewidth, page.imagelength) == size]
            for page in pages:
                page.jpegtables  # noqa: B018 - read while the file is open
    except Exception as error:
        # Whatever a directory of a file that OpenSlide reads may hold, it is no reason to stop.
        raise NotTiled(f"tifffile cannot read it: {type(error).__name__}: {error}") from None
    if len(pages) != 1:
        raise NotTiled(f"{len(pages)} tiled images have the size of the level")
    page = pages[0]
    if page.compression != tifffile.COMPRESSION.JPEG:
        raise NotTiled(f"its tiles are {tifffile.COMPRESSION(page.compression).name}, not JPEG")
    if (page.samplesperpixel, page.bitspersample, page.planarconfig) != (3, 8, 1):
        raise NotTiled("its tiles are not RGB of 8 bits")
    return page
