"""Tiles as records, for the search for equal pixels."""

from gigatile.records.example import some_bytes
from gigatile.records.files import RecordFile
from gigatile.records.tfrecord import damaged, read_sized
from gigatile.records.tile import is_plain
from gigatile.report.records import Record, RecordKind


def read_tile(file: RecordFile, offset: int, size: int) -> Record:
    """Read a tile. Its pixels are the JPEG: one encoder wrote the JPEGs of all tiles."""
    data = read_sized(file, offset, size)
    try:
        slide, image = some_bytes(data, "slide", "image")
        return Record(slide.decode(), data, [image])
    except ValueError as error:
        raise damaged(file.path, offset, f"not a tile ({error})") from None


TILES = RecordKind("tile", "tile", read_tile, is_plain)
