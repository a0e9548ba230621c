"""Write slides in Hamamatsu's formats: NDPI, and the older VMS and VMU."""

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

MCU = 8  # px, side of a JPEG block without subsampling
RESTART = 16  # blocks between two restart markers; OpenSlide reads such a run as a tile
WHOLE = MCU * DOWNSAMPLES[-1]  # px, so that the smallest level also consists of whole blocks
ASCII, SHORT, LONG, RATIONAL, SLONG, FLOAT = 2, 3, 4, 5, 9, 11
CODES = {ASCII: "B", SHORT: "H", LONG: "I", RATIONAL: "II", SLONG: "i", FLOAT: "f"}
COLUMN = 16  # px, width of the columns of VMU
MACRO = -1.0  # the "objective" of the macro image


def write_hamamatsu(path: Path, pixels: np.ndarray, *, mpp: float = 0.5, quality: int = 90) -> Path:
    """Write an NDPI file: a TIFF in which each level is one JPEG in one strip.

    The scanner writes whole tiles only, so the slide is padded to multiples of 128 px. Between the
    levels of the file, OpenSlide adds levels that the JPEG decoder computes by scaling.
    """
    pages = []
    for factor, level in zip(DOWNSAMPLES, pyramid(whole_tiles(pixels, WHOLE)), strict=True):
        data, starts = restarting_jpeg(level, quality)
        pages.append((level.shape, data, starts, POWER / factor, mpp * factor))
    macro = shrink(pixels, 8)
    pages.append((macro.shape, jpeg(macro, quality), [], MACRO, mpp * 8))

    file = bytearray(struct.pack("<2sHQ", b"II", 42, 0))
    link = 4  # offset of the field for the offset of the next page
    for shape, data, starts, lens, page_mpp in pages:
        strip = len(file)
        file += data
        entries = page_tags(shape, strip, len(data), starts, lens, page_mpp)
        link = add_page(file, link, entries)
    path.write_bytes(file)
    return path


def restarting_jpeg(pixels: np.ndarray, quality: int) -> tuple[bytes, list[int]]:
    """Return a JPEG with restart markers, and the offsets at which decoding can start."""
    blocks = pixels.shape[1] // MCU
    stream = io.BytesIO()
    Image.fromarray(pixels).save(
        stream,
        "JPEG",
        quality=quality,
        subsampling=0,
        # A tile must not extend beyond the end of a row.
        restart_marker_blocks=math.gcd(blocks, RESTART),
    )
    data = stream.getvalue()
    scan = data.index(b"\xff\xda")
    (header,) = struct.unpack_from(">H", data, scan + 2)
    first = scan + 2 + header
    # Within the scan, FF starts such a marker; a literal FF is followed by 0.
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
        (65422, SLONG, [0]),  # nm from the centre of the glass, across
        (65423, SLONG, [0]),  # and down
        (65424, SLONG, [0]),  # the focal plane
        (65426, LONG, starts),
        (65442, ASCII, b"000000\0"),  # serial number of the scanner
        (65449, ASCII, b"Product=C9600-12\r\nsystem.version=1.0\r\n\0"),
    ]
    return [tag for tag in tags if len(tag[2])]


def add_page(file: bytearray, link: int, tags: list[tuple[int, int, Any]]) -> int:
    """Add a directory of tags to the file; return the offset of its field for the next directory.

    The offset of a directory has 8 bytes in NDPI and 4 in TIFF. The upper halves of all values
    follow the directory, so a file of more than 4 GB has the layout of a small one.
    """
    entries = b""
    for number, kind, values in tags:
        code = CODES[kind]
        packed = struct.pack("<" + code[0] * len(values), *values)
        count = len(values) // len(code)
        if len(packed) > 4:
            offset = len(file)
            file += packed
            packed = struct.pack("<I", offset)
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
    """Write a VMS slide: a text file, level 0 as 2 by 2 JPEGs, and a map, 16x smaller.

    The slide is padded to multiples of 256 px; as with NDPI, OpenSlide adds levels. The file with
    the offsets of the restart markers is optional and left out: OpenSlide searches for them.
    """
    whole = whole_tiles(pixels, 2 * WHOLE)
    height, width = (length // 2 for length in whole.shape[:2])
    keys: dict[str, Any] = {"NoLayers": 1, "NoJpegColumns": 2, "NoJpegRows": 2}
    for row in range(2):
        for column in range(2):
            part = whole[row * height : (row + 1) * height, column * width : (column + 1) * width]
            name = f"{path.stem}({column},{row}).jpg"
            (path.parent / name).write_bytes(restarting_jpeg(part, quality)[0])
            keys[f"ImageFile({column},{row})" if row or column else "ImageFile"] = name
    keys["MapFile"] = f"{path.stem}_map2.jpg"
    (path.parent / keys["MapFile"]).write_bytes(restarting_jpeg(shrink(whole, 16), quality)[0])
    return key_file(path, "Virtual Microscope Specimen", keys, whole.shape, mpp)


def write_hamamatsu_vmu(
    path: Path, pixels: np.ndarray, *, mpp: float = 0.5, quality: int = 90
) -> Path:
    """Write a VMU slide: a text file, level 0, and a map, 16x smaller; both uncompressed.

    The slide is padded to multiples of 256 px; `quality` has no effect.
    """
    whole = whole_tiles(pixels, COLUMN * 16)
    keys: dict[str, Any] = {"ImageFile": f"{path.stem}.ngr", "MapFile": f"{path.stem}_map2.ngr"}
    for name, level in zip(keys.values(), (whole, shrink(whole, 16)), strict=True):
        height, width = level.shape[:2]
        header = struct.pack("<2s2x5iI", b"GN", width, height, COLUMN, 0, 0, 28)
        # The image is stored as consecutive columns of `COLUMN` px, with 12 bits per channel.
        columns = level.reshape(height, width // COLUMN, COLUMN, 3).transpose(1, 0, 2, 3)
        (path.parent / name).write_bytes(header + (columns.astype("<u2") << 4).tobytes())
    keys |= {"BitsPerPixel": 36, "PixelOrder": "RGB"}
    return key_file(path, "Uncompressed Virtual Microscope Specimen", keys, whole.shape, mpp)


def key_file(
    path: Path, group: str, keys: dict[str, Any], shape: tuple[int, ...], mpp: float
) -> Path:
    """Write the text file that lists the slide's image files."""
    height, width = shape[:2]
    keys = keys | {
        "PhysicalWidth": round(width * mpp * 1000),  # nm
        "PhysicalHeight": round(height * mpp * 1000),
        "SourceLens": POWER,
    }
    path.write_text("\n".join([f"[{group}]", *(f"{k}={v}" for k, v in keys.items())]) + "\n")
    return path
