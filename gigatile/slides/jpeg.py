"""Build complete JPEG files from the streams in a slide's file, without decoding them.

Markers: ITU-T T.81. The Adobe marker, which specifies the colour transform: section 18 of Adobe's
Technical Note 5116, and ITU-T T.872, 6.5.3.
"""

import re
import struct

_START, _END = b"\xff\xd8", b"\xff\xd9"
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, 0xD9
_COMMENT = 0xFE
_APPLICATION = range(0xE0, 0xF0)
_NO_LENGTH = (0x01, *range(0xD0, 0xD8))  # markers without a length
# Start of frame: C0-CF without Huffman tables (C4), a reserved marker (C8) and arithmetic coding
# conditions (CC).
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# A marker after scan data: not a stuffed byte (FF00), a restart marker or a fill byte.
_END_OF_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")


def jpeg_header(tables: bytes | None, ycbcr: bool) -> bytes:
    """Return the header of all tiles of an image: start, Adobe marker, tables.

    Args:
        tables: TIFF's JPEGTables, an abbreviated JPEG stream; or None.
        ycbcr: whether three components are YCbCr; otherwise they are RGB.

    Raises:
        ValueError: the tables are not a JPEG stream.
    """
    adobe = b"Adobe" + struct.pack(">HHHB", 100, 0, 0, int(ycbcr))
    marker = b"\xff\xee" + struct.pack(">H", 2 + len(adobe)) + adobe
    return _START + marker + (b"" if tables is None else clean_header(tables)[0])


def clean_header(stream: bytes) -> tuple[bytes, int]:
    """Return the segments before the first scan (or the end), and the position of the scan.

    The start marker, application segments and comments are left out. The TIFF directory specifies
    the colours, and metadata of the scanner must not leave the slide with a tile.

    Raises:
        ValueError: not a JPEG stream.
    """
    if stream[:2] != _START:
        raise ValueError("not a JPEG stream")
    return _clean(stream, 2)


def _clean(stream: bytes, position: int) -> tuple[bytes, int]:
    """Return the segments up to the next scan (or the end), and the position of the scan."""
    parts: list[bytes] = []
    while True:
        if stream[position : position + 1] != b"\xff" or position + 2 > len(stream):
            raise ValueError("the JPEG stream ends before its pixels")
        marker = stream[position + 1]
        if marker in (_START_OF_SCAN, _END_OF_IMAGE):
            return b"".join(parts), position
        if marker == 0xFF:  # a fill byte
            position += 1
            continue
        if marker in _NO_LENGTH:
            position += 2
            continue
        length = int.from_bytes(stream[position + 2 : position + 4], "big")
        if length < 2 or position + 2 + length > len(stream):
            raise ValueError("the JPEG stream ends before its pixels")
        if marker not in _APPLICATION and marker != _COMMENT:
            parts.append(stream[position : position + 2 + length])
        position += 2 + length


def clean_scans(stream: bytes, position: int, width: int, height: int) -> bytes:
    """Return a stream from its first scan to its end, without comments.

    Pixels are not decoded, so damage to them is not detected unless the end is missing.

    Args:
        stream: the whole stream.
        position: of the first scan.
        width, height: the expected size in pixels.

    Raises:
        ValueError: the stream has no end, or another size.
    """
    size = _size(stream[:position])
    if size != (width, height):
        raise ValueError(f"it has {size[0]}×{size[1]} px, expected {width}×{height}")
    parts = []
    while True:
        header_length = int.from_bytes(stream[position + 2 : position + 4], "big")
        end = _END_OF_SCAN.search(stream, position + 2 + header_length)
        if end is None:
            raise ValueError("the JPEG stream has no end")
        parts.append(stream[position : end.start()])
        segments, position = _clean(stream, end.start())
        parts.append(segments)
        if stream[position + 1] == _END_OF_IMAGE:
            return b"".join([*parts, _END])


def _size(header: bytes) -> tuple[int, int]:
    """Return the width and height in a header, in pixels."""
    position = 2
    while position + 9 <= len(header):
        marker = header[position + 1]
        if marker in _FRAMES:
            height, width = struct.unpack(">HH", header[position + 5 : position + 9])
            return width, height
        if marker == 0xFF:
            position += 1
        elif marker in _NO_LENGTH:
            position += 2
        else:
            position += 2 + int.from_bytes(header[position + 2 : position + 4])
    raise ValueError("the JPEG stream has no frame")
