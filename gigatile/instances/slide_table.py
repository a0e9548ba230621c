"""The table of a slide's instances: position, size, shape, class and score of each (Parquet)."""

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gigatile.files import write_whole
from gigatile.instances.detection import Detection
from gigatile.instances.geojson import instance_id
from gigatile.instances.outlines import shape_of

# Rows of a row group. As Python objects, while they are collected, they take about 20 MB.
ROWS = 1 << 14
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        # The centroid in level-0 pixels and in micrometres from the slide's corner.
        *((name, pa.float64()) for name in ("x", "y", "x_um", "y_um")),
        # In pixels of the detector's input.
        ("area_px", pa.int64()),
        *((name, pa.float64()) for name in ("area_um2", "perimeter_um", "major_um", "minor_um")),
        *((name, pa.float64()) for name in ("eccentricity", "solidity")),
        ("class", pa.string()),
        ("score", pa.float64()),
        # The box in level-0 pixels.
        *((name, pa.float64()) for name in ("top", "left", "bottom", "right")),
    ]
)


@dataclass(frozen=True)
class SlideScale:
    """The scale of the detector's input.

    Attributes:
        across, down: level-0 pixels for each pixel of the detector's input.
        mpp: micrometres per level-0 pixel; None if unknown.
    """

    across: float
    down: float
    mpp: float | None


def describe_instance(instance: Detection, scale: SlideScale, name: str) -> dict[str, Any]:
    """Return the row of an instance, without its id; lengths in micrometres may be None.

    Lengths are those in pixels times the mean scale; `across` and `down` must be nearly equal.

    Args:
        instance: in pixels of the detector's input.
        scale: of these pixels.
        name: of its class.
    """
    shape = shape_of(instance.mask)
    rows, columns = instance.mask.shape
    y, x = (
        (corner + centre) * factor
        for corner, centre, factor in zip(
            (instance.top, instance.left), shape.centroid, (scale.down, scale.across), strict=True
        )
    )
    mpp = scale.mpp
    area_of_pixel = None if mpp is None else scale.across * scale.down * mpp**2
    side = None if area_of_pixel is None else math.sqrt(area_of_pixel)
    return {
        "x": x,
        "y": y,
        "x_um": _times(x, mpp),
        "y_um": _times(y, mpp),
        "area_px": shape.area,
        "area_um2": _times(shape.area, area_of_pixel),
        "perimeter_um": _times(shape.perimeter, side),
        "major_um": _times(shape.major_axis, side),
        "minor_um": _times(shape.minor_axis, side),
        "eccentricity": shape.eccentricity,
        "solidity": shape.solidity,
        "class": name,
        "score": instance.score,
        "top": instance.top * scale.down,
        "left": instance.left * scale.across,
        "bottom": (instance.top + rows) * scale.down,
        "right": (instance.left + columns) * scale.across,
    }


def _times(value: float, factor: float | None) -> float | None:
    return None if factor is None else value * factor


class InstanceTable:
    """A table that is being written; see `write_instances`."""

    def __init__(self, writer: pq.ParquetWriter, slide: str) -> None:
        self._writer, self._slide = writer, slide
        self._rows: list[Mapping[str, Any]] = []
        self._count = 0

    def add(self, row: Mapping[str, Any]) -> str:
        """Add a row of `describe_instance`; return its id, the same as in the GeoJSON."""
        identifier = instance_id(self._slide, self._count)
        self._count += 1
        self._rows.append({"id": identifier, **row})
        if len(self._rows) == ROWS:
            self.flush()
        return identifier

    def flush(self) -> None:
        """Write the rows in memory as a row group."""
        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, SCHEMA), row_group_size=ROWS)
            self._rows = []


@contextlib.contextmanager
def write_instances(path: Path, slide: str) -> Iterator[InstanceTable]:
    """Write a table in row groups, whole or not at all; equal rows give equal bytes.

    Args:
        path: of the table (.parquet).
        slide: id of the slide.
    """
    with (
        write_whole(path) as temporary,
        pq.ParquetWriter(temporary, SCHEMA, compression="zstd") as writer,
    ):
        table = InstanceTable(writer, slide)
        yield table
        table.flush()


def read_batches(path: Path, columns: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
    """Yield columns of a table that `write_instances` wrote, some rows at a time."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(ROWS, columns=list(columns)):
            yield {name: batch.column(name).to_numpy(zero_copy_only=False) for name in columns}


def density_map(
    batches: Iterable[Mapping[str, np.ndarray]], width: float, height: float, cell: float
) -> np.ndarray:
    """Return the number of instances with their centroid in each cell of a slide.

    Args:
        batches: with the columns x and y in level-0 pixels; for example `read_batches`.
        width, height: of the slide in level-0 pixels.
        cell: side of the square cells in level-0 pixels; the last ones may extend beyond the slide.

    Returns:
        (rows, columns) int64. A centroid on the right or lower edge of the slide is in the last
        cell.
    """
    shape = (max(1, math.ceil(height / cell)), max(1, math.ceil(width / cell)))
    counts = np.zeros(shape, np.int64)
    for batch in batches:
        row, column = (
            np.clip(np.asarray(batch[name]) // cell, 0, limit - 1).astype(np.int64)
            for name, limit in zip(("y", "x"), shape, strict=True)
        )
        counts += np.bincount(row * shape[1] + column, minlength=counts.size).reshape(shape)
    return counts
