"""JPEG streams inside a slide's file: made whole without being decoded.

ITU-T T.81 names the markers; the Adobe marker and how it tells the colours: section 18 of Adobe's
Technical Note 5116, and ITU-T T.872, 6.5.3.
"""

import re
import struct

_START, _END = b"\xff\xd8", b"\xff\xd9"
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, 0xD9
_COMMENT = 0xFE
_APPLICATION = range(0xE0, 0xF0)
_ALONE = (0x01, *range(0xD0, 0xD8))  # markers without a length
# Frames: all but tables (C4), a reserved one (C8) and arithmetic conditions (CC).
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# A marker among the pixels: neither a byte of them (FF00), nor a restart, nor a byte to fill up.
_AMONG_PIXELS = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")


def header_of(tables: bytes | None, ycbcr: bool) -> bytes:
    """Return what the streams of one image begin with: the start, how colours are coded, tables.

    Args:
        tables: the file's own tables as a stream (TIFF's JPEGTables), or None.
        ycbcr: whether three components are YCbCr; else they are RGB.

    Raises:
        ValueError: the tables are no JPEG stream.
    """
    adobe = b"Adobe" + struct.pack(">HHHB", 100, 0, 0, int(ycbcr))
    marker = b"\xff\xee" + struct.pack(">H", 2 + len(adobe)) + adobe
    return _START + marker + (b"" if tables is None else clean_header(tables)[0])


def clean_header(stream: bytes) -> tuple[bytes, int]:
    """Return what a stream says before its pixels, or its end, and where these begin.

    Application markers and comments are left out, and the start. The file says elsewhere how
    colours are coded, and nothing that a scanner wrote beside the pixels leaves the slide with it.

    Raises:
        ValueError: it is no JPEG stream.
    """
    if stream[:2] != _START:
        raise ValueError("not a JPEG stream")
    return _clean(stream, 2)


def _clean(stream: bytes, at: int) -> tuple[bytes, int]:
    """Return the segments from `at` to the next pixels or the end, and where that is."""
    parts: list[bytes] = []
    while True:
        if stream[at : at + 1] != b"\xff" or at + 2 > len(stream):
            raise ValueError("a JPEG stream that ends before its pixels")
        marker = stream[at + 1]
        if marker in (_START_OF_SCAN, _END_OF_IMAGE):
            return b"".join(parts), at
        if marker == 0xFF:  # a byte to fill up with
            at += 1
            continue
        if marker in _ALONE:
            at += 2
            continue
        length = int.from_bytes(stream[at + 2 : at + 4], "big")
        if length < 2 or at + 2 + length > len(stream):
            raise ValueError("a JPEG stream that ends before its pixels")
        if marker not in _APPLICATION and marker != _COMMENT:
            parts.append(stream[at : at + 2 + length])
        at += 2 + length


def clean_pixels(stream: bytes, at: int, width: int, height: int) -> bytes:
    """Return a stream from its first scan on, without comments between scans or after its end.

    Pixels are not decoded: that they are damaged goes unseen, unless the end is missing.

    Args:
        stream: the whole of it.
        at: where the first scan begins.
        width, height: pixels that it must have.

    Raises:
        ValueError: it has no end, or another size.
    """
    found = _size(stream[:at])
    if found != (width, height):
        raise ValueError(f"it has {found[0]}×{found[1]} px where {width}×{height} are expected")
    parts = []
    while True:
        # Behind the scan's own header.
        after = _AMONG_PIXELS.search(
            stream, at + 2 + int.from_bytes(stream[at + 2 : at + 4], "big")
        )
        if after is None:
            raise ValueError("a JPEG stream without an end")
        parts.append(stream[at : after.start()])
        segments, at = _clean(stream, after.start())
        parts.append(segments)
        if stream[at + 1] == _END_OF_IMAGE:
            return b"".join([*parts, _END])


def _size(header: bytes) -> tuple[int, int]:
    """Return the width and height that a header tells, in pixels."""
    at = 2
    while at + 9 <= len(header):
        marker = header[at + 1]
        if marker in _FRAMES:
            height, width = struct.unpack(">HH", header[at + 5 : at + 9])
            return width, height
        alone = marker == 0xFF or marker in _ALONE
        at += (1 if marker == 0xFF else 2) if alone else 2 + int.from_bytes(header[at + 2 : at + 4])
    raise ValueError("a JPEG stream without a frame")
