"""Read the native JPEG tiles of a TIFF slide: each is decoded once, directly to RGB.

OpenSlide is the reference. For formats in which it only decodes JPEG tiles and places them side by
side, this reader returns the same pixels several times faster: without RGBA, and without decoding a
tile again for each region that it belongs to.
"""

import os
from pathlib import Path

import numpy as np
import simplejpeg
import tifffile

from gigatile.slides.jpeg import clean_header, clean_scans, jpeg_header
from gigatile.slides.reader import RegionError, Slide, SlideError

# Formats in which a level is one TIFF image with adjacent tiles. In other formats OpenSlide moves
# overlapping tiles (Ventana), or combines several images (Leica).
FORMATS = ("aperio", "generic-tiff", "philips")
# The largest read, and the largest gap in the file that is read over: network disks favour few
# large reads.
READ_BYTES = 1 << 20
GAP_BYTES = 64 << 10


class NotTiled(Exception):
    """The native tiles of a level cannot be read directly; the message says why."""


class TiffLevel:
    """A level of a slide with native JPEG tiles of one size, in row order.

    Attributes:
        width, height: of the level, in pixels.
        tile_width, tile_height: of the native tiles, in pixels.
        columns, rows: of native tiles; the last ones may extend beyond the level's edge.
    """

    def __init__(self, path: Path, slide: Slide, level: int) -> None:
        """Find the level of an open slide in the TIFF directories of its file.

        Raises:
            NotTiled: its native tiles cannot be read directly.
        """
        if slide.vendor not in FORMATS:
            raise NotTiled(f"native tiles are not supported for the format {slide.vendor}")
        page = _page(path, slide, level)
        self.width, self.height = slide.level_sizes[level]
        self.tile_width, self.tile_height = page.tilewidth, page.tilelength
        self.columns = -(-page.imagewidth // self.tile_width)
        self.rows = -(-page.imagelength // self.tile_height)
        try:
            self._offsets = np.array(page.dataoffsets, np.int64)
            self._counts = np.array(page.databytecounts, np.int64)
        except (TypeError, ValueError, OverflowError):
            raise NotTiled("its TIFF directory has tile offsets that are not numbers") from None
        if self._offsets.ndim != 1 or self._offsets.shape != self._counts.shape:
            raise NotTiled("its TIFF directory lacks offsets or byte counts of tiles")
        if min(self._offsets.min(initial=0), self._counts.min(initial=0)) < 0:
            raise NotTiled("its TIFF directory has negative offsets or byte counts of tiles")
        if len(self._offsets) != self.columns * self.rows:
            raise NotTiled(
                f"it has {len(self._offsets)} tiles, expected {self.columns}×{self.rows}"
            )
        if slide.vendor == "aperio" and level > 0 and (self._counts == 0).any():
            raise NotTiled("it lacks tiles, which OpenSlide renders from the next finer level")
        tables = page.jpegtables
        ycbcr = page.photometric == tifffile.PHOTOMETRIC.YCBCR
        try:
            self._header = jpeg_header(tables, ycbcr)
        except ValueError as error:
            raise NotTiled(f"its JPEG tables are damaged: {error}") from None
        # The header of the last tile, as in the file and as in a complete JPEG.
        self._last_headers = (b"", b"")
        self._read_error: str | None = None
        self._parts = slide.parts
        self._file = os.open(path, os.O_RDONLY)
        self._end = os.fstat(self._file).st_size

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def missing(self, tile: int) -> bool:
        """Return whether the file has no data for a tile: it was not scanned."""
        return self._counts[tile] == 0

    def holds(self, boxes: np.ndarray) -> np.ndarray:
        """Return for each box whether the file has data for any of its tiles.

        Args:
            boxes: left, top, width, height in pixels of the level: (n, 4) int64.

        Returns:
            (n,) bool.
        """
        # With a summed-area table, each box takes four look-ups.
        sums = np.zeros((self.rows + 1, self.columns + 1), np.int64)
        stored = (self._counts > 0).reshape(self.rows, self.columns)
        sums[1:, 1:] = stored.cumsum(axis=0).cumsum(axis=1)
        left, top, width, height = boxes.T
        x0, x1 = left // self.tile_width, -(-(left + width) // self.tile_width)
        y0, y1 = top // self.tile_height, -(-(top + height) // self.tile_height)
        (x0, x1), (y0, y1) = (
            np.clip((x0, x1), 0, self.columns),
            np.clip((y0, y1), 0, self.rows),
        )
        return sums[y1, x1] - sums[y0, x1] - sums[y1, x0] + sums[y0, x0] > 0

    def read_run(self, tiles: np.ndarray) -> dict[int, bytes]:
        """Return the streams of the first tiles, as many as one read can contain.

        Args:
            tiles: indices of tiles with data, (n,) int64; n at least 1.

        Returns:
            The streams of the first tile and of the tiles that follow it closely in the file, by
            index. A stream is too short if the file is truncated.
        """
        offsets, counts = self._offsets[tiles], self._counts[tiles]
        ends = offsets + counts
        gaps = offsets[1:] - ends[:-1]
        near = (gaps >= 0) & (gaps <= GAP_BYTES) & (ends[1:] - offsets[0] <= READ_BYTES)
        run = len(tiles) if near.all() else 1 + int(near.argmin())
        start = int(offsets[0])
        # Limited by the file's size, because a damaged directory can have any byte count.
        size = max(0, min(int(ends[run - 1]), self._end) - start)
        if self._parts is not None:
            # All of them at once, not only this run: requests to a store run side by side.
            self._parts.fetch_ranges(list(zip(offsets.tolist(), ends.tolist(), strict=True)))
        try:
            data = os.pread(self._file, size, start)
        except OSError as error:
            # The data is too short, so `complete_stream` raises the error, with the tile.
            self._read_error = error.strerror
            data = b""
        return {
            int(tile): data[begin - start : end - start]
            for tile, begin, end in zip(tiles[:run], offsets[:run], ends[:run], strict=True)
        }

    def complete_stream(self, tile: int, stream: bytes) -> bytes:
        """Return a native tile as a complete JPEG.

        Raises:
            RegionError: it is damaged.
        """
        if len(stream) < self._counts[tile]:
            raise self._error(tile, self._read_error or "the file is truncated")
        # Most tiles of a level have the same header as the last tile.
        raw, complete = self._last_headers
        if not raw or not stream.startswith(raw):
            try:
                segments, scan = clean_header(stream)
            except ValueError as error:
                raise self._error(tile, error) from None
            raw = stream[: scan + 2]
            complete = self._header + segments + stream[scan : scan + 2]
            self._last_headers = raw, complete
        return complete + stream[len(raw) :]

    def clean_stream(self, tile: int, stream: bytes) -> bytes:
        """Return a native tile as a complete JPEG without metadata.

        Raises:
            RegionError: its header or its end is damaged; its pixels are not checked.
        """
        complete = self.complete_stream(tile, stream)
        try:
            segments, scan = clean_header(stream)
            scans = clean_scans(stream, scan, self.tile_width, self.tile_height)
        except ValueError as error:
            raise self._error(tile, error) from None
        return complete[: len(self._header) + len(segments)] + scans

    def decode(self, tile: int, stream: bytes) -> np.ndarray:
        """Return the pixels of a native tile: (tile_height, tile_width, 3) uint8 RGB.

        Raises:
            RegionError: it is damaged, even if libjpeg could recover a picture.
        """
        complete = self.complete_stream(tile, stream)
        try:
            pixels = simplejpeg.decode_jpeg(complete, strict=True)
        except ValueError as error:
            raise self._error(tile, error) from None
        if pixels.shape != (self.tile_height, self.tile_width, 3):
            size = f"{pixels.shape[1]}×{pixels.shape[0]} px"
            raise self._error(tile, f"it has {size}, expected {self.tile_width}×{self.tile_height}")
        return pixels

    def _error(self, tile: int, reason: object) -> RegionError:
        row, column = divmod(tile, self.columns)
        return RegionError(
            f"the native tile in column {column}, row {row} cannot be read: {reason}"
        )


def check_directories(path: Path, slide: Slide) -> None:
    """Check that the TIFF directories list as many tiles as the image sizes require.

    This detects a wrong image size before anything is read. OpenSlide would place tiles at wrong
    positions, and render missing tiles as glass.

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
        return  # OpenSlide reads or refuses what tifffile cannot read
    for width, height, tiles, planes, listed in pages:
        if listed != tiles * planes:
            raise SlideError(
                f"its TIFF directory is inconsistent: an image of {width}×{height} px needs "
                f"{tiles * planes:,} tiles, but {listed:,} are listed"
            )


def _page(path: Path, slide: Slide, level: int) -> tifffile.TiffPage:
    try:
        with tifffile.TiffFile(path) as tiff:
            pages = [
                page for page in tiff.pages if isinstance(page, tifffile.TiffPage) and page.is_tiled
            ]
            if slide.vendor == "philips":  # images are in the order of levels, with padded sizes
                pages = pages[level : level + 1]
            else:
                size = slide.level_sizes[level]
                pages = [page for page in pages if (page.imagewidth, page.imagelength) == size]
            for page in pages:
                page.jpegtables  # noqa: B018 - loads them while the file is open
    except Exception as error:
        # OpenSlide can read the file, so no error here may end the tiling.
        raise NotTiled(f"tifffile cannot read it: {type(error).__name__}: {error}") from None
    if len(pages) != 1:
        raise NotTiled(f"the file has {len(pages)} tiled images of the size of the level")
    page = pages[0]
    if page.compression != tifffile.COMPRESSION.JPEG:
        raise NotTiled(f"its tiles are {tifffile.COMPRESSION(page.compression).name}, not JPEG")
    if (page.samplesperpixel, page.bitspersample, page.planarconfig) != (3, 8, 1):
        raise NotTiled("its tiles are not 8-bit RGB")
    return page
