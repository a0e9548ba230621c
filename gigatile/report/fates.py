"""What became of each tile of a slide, as a picture over it and as a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gigatile.errors import UserError
from gigatile.report import heatmap
from gigatile.slides.state import TileGrid

# Why a tile is dropped or marked, in the order in which it is asked; what the report says of it;
# and its colour: those of Okabe and Ito (https://jfly.uni-koeln.de/color/), which are told apart
# with any colour vision.
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
# How much a tile is covered that was dropped, and one that is only marked.
_DROPPED, _MARKED = 255, 110


@dataclass(frozen=True)
class Fate:
    """How many tiles have one fault; `colour` is as CSS has it."""

    name: str
    colour: str
    dropped: int
    marked: int


@dataclass(frozen=True)
class TileFates:
    """What became of the n tiles of a slide's grid, row by row.

    Attributes:
        x, y: (n,) int64, top-left corners in pixels of level 0.
        dropped: why each was dropped, empty of those that are kept.
        marks: which rules mark each, with spaces between.
    """

    x: np.ndarray
    y: np.ndarray
    dropped: Sequence[str]
    marks: Sequence[str]


def read_fates(path: Path, grid: TileGrid) -> TileFates:
    """Read a slide's table of tiles; it must have a row for each place of the grid.

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
            f"{path}: {len(x)} tiles where the slide's grid has {grid.columns} × {grid.rows}; one "
            "of the two is stale"
        )
    unknown = {word for words in (*dropped, *marks) for word in str(words).split()} - set(FAULTS)
    if unknown:
        raise UserError(f"{path}: tiles dropped or marked as {sorted(unknown)}, which is no fault")
    return TileFates(x, y, dropped, marks)


def fate_rows(fates: TileFates) -> list[Fate]:
    """Count the tiles of each fault that there is."""
    marked = [mark for one in fates.marks for mark in one.split()]
    rows = [
        Fate(name, _css(colour), list(fates.dropped).count(fault), marked.count(fault))
        for fault, (name, colour) in FAULTS.items()
    ]
    return [row for row in rows if row.dropped or row.marked]


def paint_fates(fates: TileFates, grid: TileGrid) -> bytes:
    """Return a PNG, one pixel for each place of the grid; transparent where nothing is wrong."""
    pixels = np.zeros((grid.rows * grid.columns, 4), np.uint8)
    for place, (dropped, marks) in enumerate(zip(fates.dropped, fates.marks, strict=True)):
        fault = dropped or next(iter(marks.split()), None)
        if fault:
            pixels[place] = (*FAULTS[fault][1], _DROPPED if dropped else _MARKED)
    return heatmap.png(pixels.reshape(grid.rows, grid.columns, 4))


def _css(colour: tuple[int, int, int]) -> str:
    return "#" + bytes(colour).hex()
