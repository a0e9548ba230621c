"""The maps of whole slides: read, checked, as pictures, and as scores of the stored tiles."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from gigatile.errors import UserError
from gigatile.files import sha256_of
from gigatile.json_models import JsonModel, read_model
from gigatile.report.slides import heatmap
from gigatile.report.slides.inputs import TileScores
from gigatile.report.slides.tile_status import TileStatus
from gigatile.slides.state import TileGrid

# A picture of a map has at most this many pixels on a side; larger maps are averaged.
LONGEST = 1000


class MapState(JsonModel):
    """The part of maps/<slide>.json that a page needs."""

    slide: str
    scores: dict[str, float]
    positions: int
    sha256: str


class _Failed(JsonModel):
    reason: str | None = None


def read_not_scored(folder: Path, slides: Sequence[str]) -> dict[str, str]:
    """Return why slides were not scored, by id, from the folder of the evaluation."""
    states = {slide: read_model(_Failed, folder / f"maps/{slide}.json") for slide in slides}
    return {slide: state.reason for slide, state in states.items() if state.reason}


@dataclass(frozen=True)
class PositionMap:
    """The map of a slide.

    Attributes:
        positions: a row for each position: x, y, side, p_<class>… and perhaps attention and
            gradcam_<class>….
        column, row: (n,) int64, the cell of each position in a grid of its side.
        box: the rectangle of that grid on the slide.
    """

    positions: pd.DataFrame
    column: np.ndarray
    row: np.ndarray
    box: heatmap.Box

    def paint(self, values: np.ndarray) -> bytes:
        """Return a PNG with a pixel for each position, or for the mean of several.

        Args:
            values: (n,) from 0 to 1.
        """
        columns, rows = int(self.column.max()) + 1, int(self.row.max()) + 1
        factor = -(-max(columns, rows) // LONGEST)
        shape = -(-rows // factor), -(-columns // factor)
        cell = (self.row // factor) * shape[1] + self.column // factor
        sums = np.bincount(cell, values, shape[0] * shape[1])
        counts = np.bincount(cell, minlength=shape[0] * shape[1])
        filled = counts > 0
        pixels = np.zeros((*shape, 4), np.uint8)
        means = sums[filled] / counts[filled]
        pixels.reshape(-1, 4)[filled] = heatmap.COLOURS[np.rint(means * 255).astype(np.int64)]
        return heatmap.png(pixels)

    def picture_box(self) -> heatmap.Box:
        """Return the rectangle of the picture; its last pixels may extend past the map."""
        columns, rows = int(self.column.max()) + 1, int(self.row.max()) + 1
        factor = -(-max(columns, rows) // LONGEST)
        side = self.box.width / columns
        across, down = -(-columns // factor) * factor, -(-rows // factor) * factor
        return heatmap.Box(self.box.x, self.box.y, across * side, down * side)

    def cell_scores(self, classes: Sequence[str], grid: TileGrid) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean activations in the cells of a tile grid of the slide.

        The grid may be that of another run, with larger or smaller tiles.

        Returns:
            The cells with a position, row * columns + column: (n,) int64, sorted; and their scores,
            (n, classes).
        """
        half = self.positions["side"].to_numpy() / 2
        column = np.floor((self.positions["x"].to_numpy() + half) / grid.extent).astype(np.int64)
        row = np.floor((self.positions["y"].to_numpy() + half) / grid.extent).astype(np.int64)
        inside = (column < grid.columns) & (row < grid.rows)
        cells, inverse = np.unique((row * grid.columns + column)[inside], return_inverse=True)
        counts = np.bincount(inverse)
        sums = [np.bincount(inverse, self.positions[f"p_{name}"][inside]) for name in classes]
        return cells, np.stack(sums, axis=1) / counts[:, None]

    def tile_scores(self, classes: Sequence[str], grid: TileGrid, status: TileStatus) -> TileScores:
        """Return the mean activations of each stored tile with a position."""
        cells, scores = self.cell_scores(classes, grid)
        return TileScores(status.x[cells], status.y[cells], scores)


def read_map(path: Path, slide: str, classes: Sequence[str]) -> PositionMap:
    """Read the map of a slide, <slide>.parquet, and check it against its state, <slide>.json.

    Raises:
        UserError: a file is missing or damaged, or one of the two is out of date.
    """
    state = read_model(MapState, path.with_suffix(".json"))
    if state.slide != slide or sha256_of(path) != state.sha256:
        raise UserError(
            f"{path}: is not the map that {path.stem}.json describes; one of the two is out of "
            "date, run the evaluation again"
        )
    names = ["x", "y", "side", *(f"p_{name}" for name in classes)]
    try:
        positions = pq.read_table(path).to_pandas()
        scores = positions[names[3:]].to_numpy(np.float64)
        x, y, side = (positions[name].to_numpy(np.float64) for name in names[:3])
    except (pa.ArrowInvalid, OSError, KeyError, ValueError) as error:
        raise UserError(f"{path}: damaged, or not a map of a slide ({error})") from None
    if not len(positions) or not ((scores >= 0) & (scores <= 1)).all() or len(np.unique(side)) > 1:
        raise UserError(f"{path}: has no positions, or a value out of range")
    left, top = x.min(), y.min()
    column = np.rint((x - left) / side).astype(np.int64)
    row = np.rint((y - top) / side).astype(np.int64)
    width, height = (float((int(cell.max()) + 1) * side[0]) for cell in (column, row))
    return PositionMap(positions, column, row, heatmap.Box(left, top, width, height))
