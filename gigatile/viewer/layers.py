"""What the viewer shows of a predicted slide: its size, its layers, the scores of its tiles."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gigatile.json_models import read_model
from gigatile.report.slides import heatmap, tile_status
from gigatile.report.slides.inputs import read_tile_scores
from gigatile.slides.state import SlideState
from gigatile.tables import read_table
from gigatile.viewer.decoding import SIDE, SlideSize

# The scores, times 255, of which the legend has the colours.
STEPS = tuple(range(0, 256, 17))
# Colour of tissue: a green that differs from the colours of the heat map.
TISSUE = (0, 200, 120, 110)


@dataclass(frozen=True)
class PredictedSlide:
    """A slide and the folder of its prediction by a classifier of tiles.

    Attributes:
        predictions: folder with slides.tsv, tiles.parquet and tiles/.
        slide: its id in these.
        classes: of the model.
    """

    predictions: Path
    slide: str
    classes: list[str]

    def describe(self, size: SlideSize) -> dict[str, Any]:
        """Return what the page needs, as JSON.

        Coordinates are in pixels of level 0. A tile at column c and row r covers the square of side
        `extent` at (c·extent, r·extent), and `tiles` has its scores as [c, r, score of each class].

        Raises:
            UserError: a file is missing, damaged, or does not match the others.
        """
        state, (column, row, scores) = self._state(), self._scores()
        assert state.grid is not None
        (called,) = [
            cells
            for cells in read_table(self.predictions / "slides.tsv")
            if cells["slide"] == self.slide
        ]
        box = heatmap.placement(state.grid)
        return {
            "width": size.width,
            "height": size.height,
            "levels": size.levels,
            "side": SIDE,
            "mpp": state.mpp,
            "extent": state.grid.extent,
            "classes": self.classes,
            "predicted": called["call_mean"],
            "scores": [float(called[f"p_{name}"]) for name in self.classes],
            "layers": [
                *(
                    {"name": f"Scores of {name}", "file": f"{number}"}
                    for number, name in enumerate(self.classes)
                ),
                {"name": "Dropped and marked tiles", "file": "status"},
                {"name": "Tissue", "file": "tissue"},
            ],
            "colours": [f"#{bytes(heatmap.COLOURS[level][:3]).hex()}" for level in STEPS],
            "box": [box.x, box.y, box.width, box.height],
            "tiles": [
                [int(c), int(r), *np.round(values, 6).tolist()]
                for c, r, values in zip(column, row, scores, strict=True)
            ],
        }

    def layer(self, name: str) -> bytes | None:
        """Return a layer as PNG: of a class by its number, `status` or `tissue`; None: no such one.

        `tissue` covers the slide, the others the box of the grid.
        """
        state = self._state()
        assert state.grid is not None
        if name == "status":
            path = self.predictions / "tiles" / f"{self.slide}.parquet"
            return tile_status.paint_status(tile_status.read_status(path, state.grid), state.grid)
        if name == "tissue":
            return _tint(self.predictions / "tiles" / f"{self.slide}.png")
        if name not in map(str, range(len(self.classes))):
            return None
        column, row, scores = self._scores()
        return heatmap.paint(scores[:, int(name)], column, row, state.grid)

    def _state(self) -> SlideState:
        return read_model(SlideState, self.predictions / "tiles" / f"{self.slide}.json")

    def _scores(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the column and the row of each scored tile, and its scores (n, classes)."""
        path = self.predictions / "tiles.parquet"
        state = self._state()
        assert state.grid is not None
        tiles = read_tile_scores(path, self.slide, self.classes, state.tiles.kept)
        column, row = heatmap.cells(tiles, state.grid, str(path))
        return column, row, tiles.scores


def _tint(path: Path) -> bytes:
    """Return a mask as PNG, transparent outside tissue."""
    with Image.open(path, formats=["PNG"]) as image:
        mask = np.asarray(image.convert("L")) > 0
    pixels = np.zeros((*mask.shape, 4), np.uint8)
    pixels[mask] = TISSUE
    buffer = io.BytesIO()
    Image.fromarray(pixels, "RGBA").save(buffer, "PNG")
    return buffer.getvalue()
