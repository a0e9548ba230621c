"""What the viewer shows of a predicted slide: its size, its layers, the scores of its tiles."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pydantic import JsonValue

from gigatile.bundle.contents import Bundle
from gigatile.errors import UserError
from gigatile.files import read_json
from gigatile.json_models import JsonModel, read_model
from gigatile.report.slides import heatmap, tile_status
from gigatile.report.slides.inputs import read_tile_scores
from gigatile.report.whole_slides.maps import PositionMap, read_map
from gigatile.report.whole_slides.page import ATTENTION_TITLE
from gigatile.slides.index import read_mask
from gigatile.slides.state import SlideState
from gigatile.tables import read_table
from gigatile.tasks import find_task
from gigatile.viewer.decoding import SlideSize

# Classifiers with maps of slides, not scores of tiles.
WITH_MAPS = frozenset(("slide_classification", "slide_embedding"))
# The scores, times 255, of which the legend has the colours.
STEPS = tuple(range(0, 256, 17))
# Colour of tissue: a green that differs from the colours of the heat map.
TISSUE = (0, 200, 120, 110)


@dataclass(frozen=True)
class ScoredCells:
    """The scores of the squares of a slide: its tiles, or the positions of a map.

    Attributes:
        word: for one of them.
        x, y: the corner of column 0, row 0, in pixels of level 0.
        side: of a square, in pixels of level 0.
        column, row: (n,) int64.
        scores: (n, classes).
        paint: returns the picture of (n,) scores as PNG.
        box: the rectangle of that picture.
        attention: (n,) as a share of the largest; None: the model has none.
    """

    word: str
    x: float
    y: float
    side: float
    column: np.ndarray
    row: np.ndarray
    scores: np.ndarray
    paint: Callable[[np.ndarray], bytes]
    box: heatmap.Box
    attention: np.ndarray | None = None


@dataclass(frozen=True)
class PredictedSlide:
    """A slide and the folders of its prediction by a classifier of tiles or of whole slides.

    Attributes:
        tables: folder with slides.tsv, and tiles.parquet or maps/.
        tiles: folder with the state, the measures and the pictures of its tiles.
        slide: its id in these.
        classes: of the model.
        is_whole: whether the model classifies whole slides, so that the scores are those of a map.
    """

    tables: Path
    tiles: Path
    slide: str
    classes: list[str]
    is_whole: bool = False

    def describe(self, size: SlideSize) -> dict[str, Any]:
        """Return what the page needs, as JSON.

        Coordinates are in pixels of level 0. The square in column c and row r has the corner
        `origin` + (c, r)·`extent`, and `tiles` has its scores as [c, r, score of each class].

        Raises:
            UserError: a file is missing, damaged, or does not match the others.
        """
        state, cells = self.state(), self._cells()
        assert state.grid is not None
        scored, grid = cells.box, heatmap.placement(state.grid)
        whole = heatmap.Box(0, 0, size.width, size.height)
        layers = [
            *((title, f"{n}", scored) for n, title in enumerate(self.titles())),
            *([(ATTENTION_TITLE, "attention", scored)] if cells.attention is not None else []),
            ("Dropped and marked tiles", "status", grid),
            ("Tissue", "tissue", whole),
        ]
        return {
            **size.shown(),
            "mpp": state.mpp,
            "word": cells.word,
            "origin": [cells.x, cells.y],
            "extent": cells.side,
            "classes": self.classes,
            **self._prediction(cells),
            "layers": [
                {"name": name, "file": file, "box": [box.x, box.y, box.width, box.height]}
                for name, file, box in layers
            ],
            "colours": [f"#{bytes(heatmap.COLOURS[level][:3]).hex()}" for level in STEPS],
            "tiles": [
                [int(c), int(r), *np.round(values, 6).tolist()]
                for c, r, values in zip(cells.column, cells.row, cells.scores, strict=True)
            ],
        }

    @property
    def column(self) -> str:
        """The column of slides.tsv with the prediction."""
        return "call_mean"

    def titles(self) -> list[str]:
        """Return the title of the layer of each class."""
        return [f"Scores of {name}" for name in self.classes]

    def _prediction(self, cells: ScoredCells) -> dict[str, Any]:
        """Return the prediction of the slide, as the page needs it."""
        called = self.called()
        return {
            "predicted": called[self.column],
            "scores": [float(called[f"p_{name}"]) for name in self.classes],
        }

    def summary(self) -> str:
        """Return the predicted class.

        Raises:
            UserError: see `called`.
        """
        return self.shown(self.called()[self.column])

    def shown(self, prediction: str) -> str:
        """Return the prediction in slides.tsv, for people to read."""
        return prediction

    def outlines(self, box: tuple[float, float, float, float]) -> dict[str, Any] | None:
        """Return no outlines: there are none."""
        return None

    def called(self) -> dict[str, str]:
        """Return the slide's row of slides.tsv.

        Raises:
            UserError: the table is missing or damaged, or has no such slide.
        """
        path = self.tables / "slides.tsv"
        for row in read_table(path, ("slide", self.column)):
            if row["slide"] == self.slide:
                return row
        raise UserError(f"{path}: no slide {self.slide!r}")

    def state(self) -> SlideState:
        """Return the state of the slide after tiling.

        Raises:
            UserError: the file is missing or damaged.
        """
        return read_model(SlideState, self.tiles / f"{self.slide}.json")

    def layer(self, name: str) -> bytes | None:
        """Return a layer as PNG: of a class by its number, `attention`, `status` or `tissue`.

        None: there is no such one.

        `describe` says which rectangle each covers.
        """
        state = self.state()
        assert state.grid is not None
        if name == "status":
            path = self.tiles / f"{self.slide}.parquet"
            return tile_status.paint_status(tile_status.read_status(path, state.grid), state.grid)
        if name == "tissue":
            return _tint(read_mask(self.tiles / f"{self.slide}.parquet"))
        if name == "attention":
            cells = self._cells()
            return None if cells.attention is None else cells.paint(cells.attention)
        if name not in map(str, range(len(self.classes))):
            return None
        return self._paint(self._cells(), int(name))

    def _paint(self, cells: ScoredCells, number: int) -> bytes:
        """Return the picture of the scores of a class."""
        return cells.paint(cells.scores[:, number])

    def _cells(self) -> ScoredCells:
        return self._positions() if self.is_whole else self._tiles()

    def _tiles(self) -> ScoredCells:
        """Return the scores of the tiles."""
        path = self.tables / "tiles.parquet"
        state = self.state()
        grid = state.grid
        assert grid is not None
        tiles = read_tile_scores(path, self.slide, self.classes, state.tiles.kept)
        column, row = heatmap.cells(tiles, grid, str(path))
        return ScoredCells(
            "Tile",
            0,
            0,
            grid.extent,
            column,
            row,
            tiles.scores,
            lambda values: heatmap.paint(values, column, row, grid),
            heatmap.placement(grid),
        )

    def _map(self) -> PositionMap:
        path = self.tables / "maps" / f"{self.slide}.parquet"
        return read_map(path, self.slide, self.classes)

    def _scores_in(self, known: PositionMap) -> np.ndarray:
        names = [f"p_{name}" for name in self.classes]
        scores: np.ndarray = known.positions[names].to_numpy(np.float64)
        return scores

    def _positions(self) -> ScoredCells:
        """Return the class activations of the positions of the map."""
        known = self._map()
        attention = None
        if "attention" in known.positions:
            attention = known.positions["attention"].to_numpy(np.float64)
            attention /= attention.max() or 1
        return ScoredCells(
            "Position",
            known.box.x,
            known.box.y,
            float(known.positions["side"].iloc[0]),
            known.column,
            known.row,
            self._scores_in(known),
            known.paint,
            known.picture_box(),
            attention,
        )


@dataclass(frozen=True)
class PredictedOutcome(PredictedSlide):
    """A slide with a predicted number or risk; its class is that of the column of its map.

    Attributes:
        kind: `number` or `survival`.
    """

    kind: str = "number"

    @property
    def column(self) -> str:
        """The column of slides.tsv with the prediction."""
        return "predicted"

    def titles(self) -> list[str]:
        """Return the title of the only layer."""
        return ["Prediction of each tile, from the lowest to the highest"]

    def shown(self, prediction: str) -> str:
        """Return the number, or the logarithm of the hazard ratio, for people to read."""
        value = f"{float(prediction):.4g}"
        return value if self.kind == "number" else f"log hazard ratio {value}"

    def _prediction(self, cells: ScoredCells) -> dict[str, Any]:
        values = cells.scores[:, 0]
        extremes = [float(f"{value:.4g}") for value in (values.min(), values.max())]
        return {"predicted": self.summary(), "range": extremes}

    def _paint(self, cells: ScoredCells, number: int) -> bytes:
        values = cells.scores[:, number]
        low = values.min()
        return cells.paint((values - low) / ((values.max() - low) or 1))

    def _map(self) -> PositionMap:
        return read_map(self.tables / "maps" / f"{self.slide}.parquet", self.slide, ())

    def _scores_in(self, known: PositionMap) -> np.ndarray:
        scores: np.ndarray = known.positions[self.classes].to_numpy(np.float64)
        return scores


def _tint(png: bytes) -> bytes:
    """Return a mask as PNG, transparent outside tissue."""
    with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
        mask = np.asarray(image.convert("L")) > 0
    pixels = np.zeros((*mask.shape, 4), np.uint8)
    pixels[mask] = TISSUE
    buffer = io.BytesIO()
    Image.fromarray(pixels, "RGBA").save(buffer, "PNG")
    return buffer.getvalue()


class _Described(JsonModel):
    outcome: dict[str, JsonValue]


def kind_in(described: Path) -> str:
    """Return the kind of the outcomes that a model predicts: `number` or `survival`.

    Raises:
        UserError: `described`, its settings.json, is missing or damaged.
    """
    return str(read_model(_Described, described).outcome.get("kind"))


def opener_of(task: str, described: Path) -> Callable[[Path, Path, str], PredictedSlide]:
    """Return the function that opens the slides that a model predicted.

    It takes the folder of the predictions, that of the tiles, and the id of the slide.

    Args:
        task: of the model, which does not detect instances.
        described: settings.json of the model.
    """
    if find_task(task).predicts_outcomes:
        kind = kind_in(described)
        return lambda tables, tiles, slide: PredictedOutcome(
            tables, tiles, slide, ["prediction"], True, kind
        )
    classes, is_whole = read_json(described)["classes"], task in WITH_MAPS
    return lambda tables, tiles, slide: PredictedSlide(tables, tiles, slide, classes, is_whole)


def predicted_slide(bundle: Bundle, results: Path, slide: str) -> PredictedSlide:
    """Open a slide that the model of a bundle predicted, from the folder of the predictions."""
    opened = opener_of(bundle.manifest.task, bundle.described)
    return opened(results, results / "tiles", slide)
