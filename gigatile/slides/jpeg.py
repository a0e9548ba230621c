"""JPEG streams inside a slide's file: made whole without being decoded.

ITU-T T.81 names the markers; the Adobe marker and how it tells the colours: section 18 of Adobe's
Technical Note 5116, and ITU-T T.872, 6.5.3.
"""

import struct

_START, _END = b"\xff\xd8", b"\xff\xd9"
_START_OF_SCAN = 0xDA
_COMMENT = 0xFE
_APPLICATION = range(0xE0, 0xF0)
_ALONE = (0x01, *range(0xD0, 0xD8))  # markers without a length


def header_of(tables: bytes | None, ycbcr: bool) -> bytes:
    """Return what the streams of one image begin with: the start, how colours are coded, tables.

    Args:
        tables: the file's own tables as a stream (TIFF's JPEGTables), or None.
        ycbcr: whether three components are YCbCr; else they are RGB.
    """
    adobe = b"Adobe" + struct.pack(">HHHB", 100, 0, 0, int(ycbcr))
    marker = b"\xff\xee" + struct.pack(">H", 2 + len(adobe)) + adobe
    shared = b"" if tables is None else tables.removeprefix(_START).removesuffix(_END)
    return _START + marker + shared


def clean_header(stream: bytes) -> tuple[bytes, int]:
    """Return what a stream says before its pixels, and where these begin.

    Application markers and comments are left out, and the start. The file says elsewhere how
    colours are coded, and nothing that a scanner wrote beside the pixels leaves the slide with it.

    Raises:
        ValueError: it is no JPEG stream.
    """
    if stream[:2] != _START:
        raise ValueError("not a JPEG stream")
    parts: list[bytes] = []
    at = 2
    while True:
        if stream[at : at + 1] != b"\xff" or at + 4 > len(stream):
            raise ValueError("a JPEG stream that ends before its pixels")
        marker = stream[at + 1]
        if marker == 0xFF:  # a byte to fill up with
            at += 1
            continue
        if marker in _ALONE:
            at += 2
            continue
        if marker == _START_OF_SCAN:
            return b"".join(parts), at
        end = at + 2 + int.from_bytes(stream[at + 2 : at + 4], "big")
        if marker not in _APPLICATION and marker != _COMMENT:
            parts.append(stream[at:end])
        at = end
