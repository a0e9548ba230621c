"""The status of each tile of a slide (kept, marked or dropped), as a picture and as a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gigatile.errors import UserError
from gigatile.report.slides import heatmap
from gigatile.slides.state import TileGrid

# The faults for which tiles are dropped or marked, in the order of the checks: name and colour. The
# colours of Okabe and Ito (https://jfly.uni-koeln.de/color/) are safe for colour-blind readers.
FAULTS = {
    "background": ("background", (153, 153, 153)),
    "pen": ("pen", (213, 94, 0)),
    "folds": ("fold", (204, 121, 167)),
    "unreadable": ("unreadable", (0, 0, 0)),
    "blur": ("out of focus", (0, 114, 178)),
    "uniform": ("nearly uniform", (240, 228, 66)),
    "clipped": ("too bright or too dark", (86, 180, 233)),
    "stripes": ("stripes of the scanner", (0, 158, 115)),
}
# Opacity of dropped and of marked tiles, 0-255.
_DROPPED, _MARKED = 255, 110


@dataclass(frozen=True)
class FaultCount:
    """The number of tiles with a fault; `colour` is a CSS colour."""

    name: str
    colour: str
    dropped: int
    marked: int


@dataclass(frozen=True)
class TileStatus:
    """The status of the n tiles of a slide's grid, row by row.

    Attributes:
        x, y: (n,) int64, top-left corners in pixels of level 0.
        dropped: the fault for which a tile was dropped; empty: it was kept.
        marks: the faults for which a tile is marked, separated by spaces.
    """

    x: np.ndarray
    y: np.ndarray
    dropped: Sequence[str]
    marks: Sequence[str]


def read_status(path: Path, grid: TileGrid) -> TileStatus:
    """Read a slide's table of tiles, which has a row for each cell of the grid.

    Raises:
        UserError: the file is missing, damaged, or of another grid.
    """
    try:
        table = pq.read_table(path, columns=["x", "y", "dropped", "marks"])
        x, y = (np.asarray(table[name], np.int64) for name in ("x", "y"))
        dropped, marks = (table[name].to_pylist() for name in ("dropped", "marks"))
    except (pa.ArrowInvalid, OSError, KeyError, ValueError) as error:
        reason = str(error).split("\n")[0].replace(str(path), path.name)
        raise UserError(
            f"{path}: damaged, or not the table of a slide's tiles ({reason})"
        ) from None
    if len(x) != grid.columns * grid.rows:
        raise UserError(
            f"{path}: {len(x)} tiles, but the slide's grid has {grid.columns} × {grid.rows}; one "
            "of the two is out of date"
        )
    unknown = {word for words in (*dropped, *marks) for word in str(words).split()} - set(FAULTS)
    if unknown:
        raise UserError(f"{path}: tiles dropped or marked for unknown faults: {sorted(unknown)}")
    return TileStatus(x, y, dropped, marks)


def count_faults(status: TileStatus) -> list[FaultCount]:
    """Return the number of tiles with each fault that occurs."""
    marked = [mark for marks in status.marks for mark in marks.split()]
    rows = [
        FaultCount(name, _css(colour), list(status.dropped).count(fault), marked.count(fault))
        for fault, (name, colour) in FAULTS.items()
    ]
    return [row for row in rows if row.dropped or row.marked]


def paint_status(status: TileStatus, grid: TileGrid) -> bytes:
    """Return a PNG with one pixel for each cell of the grid; transparent without a fault."""
    pixels = np.zeros((grid.rows * grid.columns, 4), np.uint8)
    for cell, (dropped, marks) in enumerate(zip(status.dropped, status.marks, strict=True)):
        fault = dropped or next(iter(marks.split()), None)
        if fault:
            pixels[cell] = (*FAULTS[fault][1], _DROPPED if dropped else _MARKED)
    return heatmap.png(pixels.reshape(grid.rows, grid.columns, 4))


def _css(colour: tuple[int, int, int]) -> str:
    return "#" + bytes(colour).hex()
