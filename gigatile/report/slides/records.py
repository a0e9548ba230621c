"""Tiles as records, for the search for equal pixels."""

import numpy as np

from gigatile.records.example import some_bytes
from gigatile.records.files import RecordFile
from gigatile.records.tfrecord import damaged, read_sized
from gigatile.records.tile import decode_jpeg
from gigatile.report.records import Record, RecordKind

# An image with fewer colours (glass, the fill value of a scanner, a straight edge between them) can
# be the same on two slides by chance. Tissue and sensor noise have hundreds.
FEWEST_COLOURS = 64


def read_tile(file: RecordFile, offset: int, size: int) -> Record:
    """Read a tile. Its pixels are the JPEG: one encoder wrote the JPEGs of all tiles."""
    data = read_sized(file, offset, size)
    try:
        slide, image = some_bytes(data, "slide", "image")
        return Record(slide.decode(), data, [image])
    except ValueError as error:
        raise damaged(file.path, offset, f"not a tile ({error})") from None


def is_plain(image: bytes) -> bool:
    """Return whether a tile has so few colours that a tile of another slide can be equal."""
    try:
        pixels = decode_jpeg(image).reshape(-1, 3).astype(np.uint32)
    except ValueError:
        return False
    colours = pixels @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    # A few pixels of nearly every tile have enough colours.
    return all(len(np.unique(some)) < FEWEST_COLOURS for some in (colours[::61], colours))


TILES = RecordKind("tile", "tile", read_tile, is_plain)
