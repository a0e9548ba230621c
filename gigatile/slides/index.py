"""The tile table of a slide: measures, drop reason and marks of each tile of the grid."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gigatile.files import write_whole
from gigatile.slides.tile_filter import Verdict

# Fractions of a tile's area on the overview, 0-1; all tiles of the grid have them.
AREAS = ("tissue", "pen_red", "pen_green", "pen_blue", "pen_black", "folds")
# Measures of a tile's own pixels; only tiles that were read have them.
MEASURES = ("sharpness", "contrast", "clipped", "stripes")
_SCHEMA = pa.schema(
    [("x", pa.int64()), ("y", pa.int64())]
    + [(name, pa.float32()) for name in (*AREAS, *MEASURES)]
    # The reason for dropping it, empty if it is kept; and the rules that mark it, space-separated.
    + [("dropped", pa.string()), ("marks", pa.string())]
)


@dataclass
class TileIndex:
    """The table of a grid's n tiles, in the order of the grid.

    Attributes:
        corners: (n, 2) int64, top-left corners in pixels of level 0.
        areas: for each of `AREAS` (n,) float64 in 0-1.
        measures: for each of `MEASURES` (n,) float32, NaN for tiles that were not read.
        dropped: the reason for dropping a tile, by its index.
        marks: the rules that mark a tile, by its index.
    """

    corners: np.ndarray
    areas: Mapping[str, np.ndarray]
    measures: Mapping[str, np.ndarray] = field(init=False)
    dropped: dict[int, str] = field(default_factory=dict)
    marks: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        missing = np.full(len(self.corners), np.nan, np.float32)
        self.measures = {name: missing.copy() for name in MEASURES}

    def add_verdict(self, tile: int, verdict: Verdict) -> None:
        """Record why a tile is dropped, and add the rules that mark it."""
        if verdict.dropped:
            self.dropped[tile] = verdict.dropped
        if verdict.marks:
            self.marks[tile] = (*self.marks.get(tile, ()), *verdict.marks)

    def kept(self) -> np.ndarray:
        """Return the indices of the tiles that are not dropped: (m,) int64."""
        dropped = np.fromiter(self.dropped, np.int64, len(self.dropped))
        return np.delete(np.arange(len(self.corners)), dropped)

    def write(self, path: Path) -> None:
        """Write the table as Parquet, whole or not at all; equal tables give equal bytes."""
        count = len(self.corners)
        x, y = self.corners.T
        columns = [_column(values, np.int64) for values in (x, y)]
        columns += [_column(self.areas[name], np.float32) for name in AREAS]
        columns += [_column(self.measures[name], np.float32) for name in MEASURES]
        columns.append(_texts([self.dropped.get(tile, "") for tile in range(count)]))
        columns.append(_texts([" ".join(self.marks.get(tile, ())) for tile in range(count)]))
        with write_whole(path) as temporary:
            pq.write_table(
                pa.Table.from_arrays(columns, schema=_SCHEMA), temporary, compression="zstd"
            )


# Arrow's constructors import pandas, which takes as long as a hundred tiles.


def _column(values: np.ndarray, dtype: type) -> pa.Array:
    contiguous: np.ndarray = np.ascontiguousarray(values, dtype)
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(contiguous.dtype), len(contiguous), [None, pa.py_buffer(contiguous)]
    )


def _texts(values: Sequence[str]) -> pa.Array:
    encoded = [value.encode() for value in values]
    offsets = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def write_empty_index(path: Path) -> None:
    """Write the table of a slide without tiles."""
    empty = {name: np.empty(0) for name in AREAS}
    TileIndex(np.empty((0, 2), np.int64), empty).write(path)
