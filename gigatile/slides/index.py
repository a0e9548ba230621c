"""The tile table of a slide: measures, drop reason and marks of each tile; and its tissue mask."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from gigatile.errors import UserError
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
# Key of the tissue mask in the file's metadata, which are text: base64 of a PNG.
_MASK = b"gigatile:tissue_mask"


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

    def write(self, path: Path, mask: Image.Image) -> None:
        """Write the table as Parquet, whole or not at all; equal tables give equal bytes.

        Args:
            path: to write.
            mask: the tissue of the whole slide; it goes into the file's metadata, see `read_mask`.
        """
        buffer = io.BytesIO()
        mask.save(buffer, "PNG")
        schema = _SCHEMA.with_metadata({_MASK: base64.b64encode(buffer.getvalue())})
        count = len(self.corners)
        x, y = self.corners.T
        columns = [_column(values, np.int64) for values in (x, y)]
        columns += [_column(self.areas[name], np.float32) for name in AREAS]
        columns += [_column(self.measures[name], np.float32) for name in MEASURES]
        columns.append(_texts([self.dropped.get(tile, "") for tile in range(count)]))
        columns.append(_texts([" ".join(self.marks.get(tile, ())) for tile in range(count)]))
        with write_whole(path) as temporary:
            pq.write_table(
                pa.Table.from_arrays(columns, schema=schema), temporary, compression="zstd"
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


def write_empty_index(path: Path, mask: Image.Image) -> None:
    """Write the table of a slide without tiles; see `TileIndex.write`."""
    empty = {name: np.empty(0) for name in AREAS}
    TileIndex(np.empty((0, 2), np.int64), empty).write(path, mask)


def read_mask(path: Path) -> bytes:
    """Return the tissue mask of a slide from its tile table: a PNG, white where there is tissue.

    Raises:
        UserError: the file is missing or damaged, or has no mask.
    """
    try:
        return base64.b64decode(pq.read_schema(path).metadata[_MASK], validate=True)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{path}: damaged, or without a tissue mask; delete it and run again"
        ) from None
