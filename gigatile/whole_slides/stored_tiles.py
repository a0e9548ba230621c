"""Open the stored tiles of one slide, tiles/<slide>.tfrecord, as a slide."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gigatile.records.example import first_ints
from gigatile.records.tfrecord import RecordError, damaged, open_records, read_sized, record_offsets
from gigatile.records.tile import image_of
from gigatile.slides.state import TileGrid
from gigatile.whole_slides.slide_pixels import StoredSlide


@contextlib.contextmanager
def open_tiles(records: Path, grid: TileGrid) -> Iterator[StoredSlide]:
    """Open a file of tiles for the block.

    Args:
        records: the file.
        grid: of the slide.

    Raises:
        RecordError: the file is missing or damaged, or a tile is not on the grid.
    """
    offsets = record_offsets(records)
    with open_records(records) as file:
        sizes = np.diff(offsets, append=file.size)

        def read(number: int) -> bytes:
            return read_sized(file, int(offsets[number]), int(sizes[number]))

        def fault(number: int, text: str) -> RecordError:
            return damaged(records, int(offsets[number]), text)

        def image(number: int) -> bytes:
            try:
                return image_of(read(number))
            except ValueError as error:
                raise fault(number, str(error)) from None

        cells = np.full((grid.rows, grid.columns), -1, np.int64)
        for number in range(len(offsets)):
            try:
                x, y = first_ints(read(number), "x", "y")
            except ValueError as error:
                raise fault(number, f"not a tile ({error})") from None
            column, row = round(x / grid.extent), round(y / grid.extent)
            if not (0 <= column < grid.columns and 0 <= row < grid.rows):
                raise fault(number, f"its tile at ({x}, {y}) is not on the slide's grid")
            if cells[row, column] >= 0:
                raise fault(number, f"another tile is at ({x}, {y})")
            cells[row, column] = number
        yield StoredSlide(cells, grid.size, image, fault)
