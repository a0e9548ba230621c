"""Slides as Hamamatsu's scanners write them: NDPI, and the older VMS and VMU."""

import io
import math
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
from format_parts import DOWNSAMPLES, POWER, jpeg, pyramid, whole_tiles
from PIL import Image

from gigatile.demo.svs import shrink

MCU = 8  # px, side of the JPEG's own blocks without subsampling
RESTART = 16  # blocks between two restart markers; such a run is a tile to OpenSlide
WHOLE = MCU * DOWNSAMPLES[-1]  # px, so that the smallest level is made of whole blocks, too
ASCII, SHORT, LONG, RATIONAL, SLONG, FLOAT = 2, 3, 4, 5, 9, 11
CODES = {ASCII: "B", SHORT: "H", LONG: "I", RATIONAL: "II", SLONG: "i", FLOAT: "f"}
COLUMN = 16  # px, width of the columns of VMU
MACRO = -1.0  # what stands for the objective of a photo of the whole glass


def write_hamamatsu(path: Path, pixels: np.ndarray, *, mpp: float = 0.5, quality: int = 90) -> Path:
    """Write an NDPI file: a TIFF in which each level is one JPEG in one strip.

    The scanner knows whole tiles only, so the slide grows to multiples of 128 px. OpenSlide adds
    levels of its own between those of the file, which it has the JPEG decoder make.
    """
    pages = []
    for factor, level in zip(DOWNSAMPLES, pyramid(whole_tiles(pixels, WHOLE)), strict=True):
        data, starts = restarting_jpeg(level, quality)
        pages.append((level.shape, data, starts, POWER / factor, mpp * factor))
    macro = shrink(pixels, 8)
    pages.append((macro.shape, jpeg(macro, quality), [], MACRO, mpp * 8))

    file = bytearray(struct.pack("<2sHQ", b"II", 42, 0))
    link = 4  # where the place of the next page is to be told
    for shape, data, starts, lens, page_mpp in pages:
        strip = len(file)
        file += data
        entries = page_tags(shape, strip, len(data), starts, lens, page_mpp)
        link = add_page(file, link, entries)
    path.write_bytes(file)
    return path


def restarting_jpeg(pixels: np.ndarray, quality: int) -> tuple[bytes, list[int]]:
    """Return a JPEG that can be entered at many places, and where these are."""
    blocks = pixels.shape[1] // MCU
    stream = io.BytesIO()
    Image.fromarray(pixels).save(
        stream,
        "JPEG",
        quality=quality,
        subsampling=0,
        # A tile must not reach over the end of a row.
        restart_marker_blocks=math.gcd(blocks, RESTART),
    )
    data = stream.getvalue()
    scan = data.index(b"\xff\xda")
    (header,) = struct.unpack_from(">H", data, scan + 2)
    first = scan + 2 + header
    # Within the scan, FF stands before such a marker, or before a 0 and means itself.
    markers = re.compile(b"\xff[\xd0-\xd7]").finditer(data, first)
    return data, [first, *(marker.end() for marker in markers)]


def page_tags(
    shape: tuple[int, ...], strip: int, length: int, starts: list[int], lens: float, mpp: float
) -> list[tuple[int, int, Any]]:
    """Return the tags of a page: number, type and values."""
    height, width = shape[:2]
    resolution = (round(1e4 / mpp * 1000), 1000)
    tags = [
        (256, LONG, [width]),
        (257, LONG, [height]),
        (258, SHORT, [8, 8, 8]),
        (259, SHORT, [7]),  # JPEG
        (262, SHORT, [6]),  # YCbCr
        (271, ASCII, b"Hamamatsu\0"),
        (272, ASCII, b"C9600-12\0"),
        (273, LONG, [strip]),
        (277, SHORT, [3]),
        (278, LONG, [height]),
        (279, LONG, [length]),
        (282, RATIONAL, resolution),
        (283, RATIONAL, resolution),
        (296, SHORT, [3]),  # per centimetre
        (530, SHORT, [1, 1]),
        (65420, SHORT, [1]),  # this is NDPI
        (65421, FLOAT, [lens]),
        (65422, SLONG, [0]),  # nm from the glass's centre, across
        (65423, SLONG, [0]),  # and down
        (65424, SLONG, [0]),  # the focal plane
        (65426, LONG, starts),
        (65442, ASCII, b"000000\0"),  # the scanner's number
        (65449, ASCII, b"Product=C9600-12\r\nsystem.version=1.0\r\n\0"),
    ]
    return [tag for tag in tags if len(tag[2])]


def add_page(file: bytearray, link: int, tags: list[tuple[int, int, Any]]) -> int:
    """Add a directory of tags to the file, and return where the next one's place is to be told.

    NDPI takes 8 bytes for the place of a directory where TIFF has 4, and after it gives the upper
    halves of all values, so that a file of more than 4 GB keeps the layout of a small one.
    """
    entries = b""
    for number, kind, values in tags:
        code = CODES[kind]
        packed = struct.pack("<" + code[0] * len(values), *values)
        count = len(values) // len(code)
        if len(packed) > 4:
            place = len(file)
            file += packed
            packed = struct.pack("<I", place)
        entries += struct.pack("<HHI4s", number, kind, count, packed)
    file += bytes(len(file) % 2)
    struct.pack_into("<Q", file, link, len(file))
    file += struct.pack("<H", len(tags)) + entries
    link = len(file)
    file += bytes(8 + 4 * len(tags))
    return link


def write_hamamatsu_vms(
    path: Path, pixels: np.ndarray, *, mpp: float = 0.5, quality: int = 90
) -> Path:
    """Write a VMS slide: a text file, beside it level 0 as 2 by 2 JPEGs, and a map, 16x smaller.

    The slide grows to multiples of 256 px, and as with NDPI, OpenSlide adds levels. The file that
    tells where a JPEG can be entered is left out, as it often is: OpenSlide looks for the places.
    """
    whole = whole_tiles(pixels, 2 * WHOLE)
    height, width = (length // 2 for length in whole.shape[:2])
    facts: dict[str, Any] = {"NoLayers": 1, "NoJpegColumns": 2, "NoJpegRows": 2}
    for row in range(2):
        for column in range(2):
            part = whole[row * height : (row + 1) * height, column * width : (column + 1) * width]
            name = f"{path.stem}({column},{row}).jpg"
            (path.parent / name).write_bytes(restarting_jpeg(part, quality)[0])
            facts[f"ImageFile({column},{row})" if row or column else "ImageFile"] = name
    facts["MapFile"] = f"{path.stem}_map2.jpg"
    (path.parent / facts["MapFile"]).write_bytes(restarting_jpeg(shrink(whole, 16), quality)[0])
    return key_file(path, "Virtual Microscope Specimen", facts, whole.shape, mpp)


def write_hamamatsu_vmu(
    path: Path, pixels: np.ndarray, *, mpp: float = 0.5, quality: int = 90
) -> Path:
    """Write a VMU slide: a text file, beside it level 0 and a map, 16x smaller, uncompressed.

    The slide grows to multiples of 256 px; `quality` changes nothing.
    """
    whole = whole_tiles(pixels, COLUMN * 16)
    facts: dict[str, Any] = {"ImageFile": f"{path.stem}.ngr", "MapFile": f"{path.stem}_map2.ngr"}
    for name, level in zip(facts.values(), (whole, shrink(whole, 16)), strict=True):
        height, width = level.shape[:2]
        header = struct.pack("<2s2x5iI", b"GN", width, height, COLUMN, 0, 0, 28)
        # The picture is cut into columns, which stand one after the other, in 12 bits per colour.
        columns = level.reshape(height, width // COLUMN, COLUMN, 3).transpose(1, 0, 2, 3)
        (path.parent / name).write_bytes(header + (columns.astype("<u2") << 4).tobytes())
    facts |= {"BitsPerPixel": 36, "PixelOrder": "RGB"}
    return key_file(path, "Uncompressed Virtual Microscope Specimen", facts, whole.shape, mpp)


def key_file(
    path: Path, group: str, facts: dict[str, Any], shape: tuple[int, ...], mpp: float
) -> Path:
    """Write the text file that names a slide's others."""
    height, width = shape[:2]
    facts = facts | {
        "PhysicalWidth": round(width * mpp * 1000),  # nm
        "PhysicalHeight": round(height * mpp * 1000),
        "SourceLens": POWER,
    }
    path.write_text("\n".join([f"[{group}]", *(f"{k}={v}" for k, v in facts.items())]) + "\n")
    return path
