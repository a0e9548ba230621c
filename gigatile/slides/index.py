"""The table of a slide's tiles: what was measured at each place of the grid, what became of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gigatile.files import write_whole
from gigatile.slides.sorting import Verdict

# Shares of a tile's area, 0-1, seen on the slide's overview; so every place of the grid has them.
AREAS = ("tissue", "pen_red", "pen_green", "pen_blue", "pen_black", "folds")
# Measured on a tile's own pixels; so only tiles that were read have them.
MEASURES = ("sharpness", "contrast", "clipped", "stripes")
_SCHEMA = pa.schema(
    [("x", pa.int64()), ("y", pa.int64())]
    + [(name, pa.float32()) for name in (*AREAS, *MEASURES)]
    # Why it was dropped, empty of one that is kept; and which rules mark it, with spaces between.
    + [("dropped", pa.string()), ("marks", pa.string())]
)


@dataclass
class TileIndex:
    """What is known of each of a grid's n tiles, in the grid's order.

    Attributes:
        corners: (n, 2) int64, top-left corners in pixels of level 0.
        areas: for each of `AREAS` (n,) float64 in 0-1.
        measures: for each of `MEASURES` (n,) float32, NaN where it was not measured.
        dropped: why a tile was dropped, by its number.
        marks: which rules mark a tile, by its number.
    """

    corners: np.ndarray
    areas: Mapping[str, np.ndarray]
    measures: Mapping[str, np.ndarray] = field(init=False)
    dropped: dict[int, str] = field(default_factory=dict)
    marks: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = np.full(len(self.corners), np.nan, np.float32)
        self.measures = {name: unknown.copy() for name in MEASURES}

    def note(self, tile: int, verdict: Verdict) -> None:
        """Note why a tile is dropped, and which rules mark it beside those that did before."""
        if verdict.dropped:
            self.dropped[tile] = verdict.dropped
        if verdict.marks:
            self.marks[tile] = (*self.marks.get(tile, ()), *verdict.marks)

    def kept(self) -> np.ndarray:
        """Return the numbers of the tiles that nothing was found to drop: (m,) int64."""
        dropped = np.fromiter(self.dropped, np.int64, len(self.dropped))
        return np.delete(np.arange(len(self.corners)), dropped)

    def write(self, path: Path) -> None:
        """Write the table as Parquet, whole or not at all; equal content gives equal bytes."""
        count = len(self.corners)
        x, y = self.corners.T
        columns = [_column(values, np.int64) for values in (x, y)]
        columns += [_column(self.areas[name], np.float32) for name in AREAS]
        columns += [_column(self.measures[name], np.float32) for name in MEASURES]
        columns.append(_texts([self.dropped.get(one, "") for one in range(count)]))
        columns.append(_texts([" ".join(self.marks.get(one, ())) for one in range(count)]))
        with write_whole(path) as temporary:
            pq.write_table(
                pa.Table.from_arrays(columns, schema=_SCHEMA), temporary, compression="zstd"
            )


# Arrow's own ways to make these load pandas, which takes as long as a hundred tiles.


def _column(values: np.ndarray, kind: type) -> pa.Array:
    plain: np.ndarray = np.ascontiguousarray(values, kind)
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(plain.dtype), len(plain), [None, pa.py_buffer(plain)]
    )


def _texts(values: Sequence[str]) -> pa.Array:
    encoded = [value.encode() for value in values]
    offsets = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(one) for one in encoded], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def write_empty_index(path: Path) -> None:
    """Write the table of a slide that has no tiles."""
    empty = {name: np.empty(0) for name in AREAS}
    TileIndex(np.empty((0, 2), np.int64), empty).write(path)
