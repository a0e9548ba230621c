"""The page of a slide that was classified as a whole: its map, and that of a tile classifier."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gigatile.report.pages import data_uri
from gigatile.report.slides.inputs import (
    ScoredSlide,
    TrainedClassifier,
    read_compared_scores,
)
from gigatile.report.slides.page import (
    FILES as TILE_FILES,
)
from gigatile.report.slides.page import (
    Layer,
    MapTexts,
    SlideMap,
    SlidePageInputs,
    slide_pages,
    tile_layers,
)
from gigatile.report.slides.tile_status import TileStatus
from gigatile.report.unit_pages import WritePage
from gigatile.report.whole_slides.comparison import Agreement, agreement, matched
from gigatile.report.whole_slides.maps import PositionMap, read_map
from gigatile.slides.state import TileGrid

# The files of a slide, and what its page shows of them.
FILES = TILE_FILES | {
    "{results}/maps/{id}.parquet": "Slide pages: maps, choice of tiles",
    "{results}/maps/{id}.json": "Slide pages: maps",
}
ATTENTION_TITLE = "Attention, as a share of the largest"
_TEXTS = MapTexts(
    predictions={"call_mean": "Predicted"},
    score="Score",
    map="Each square is a position of the encoder; its colour is the class activation, the score "
    "that the model would give to a slide of this position alone",
    gallery="the mean class activation of its positions",
)


class WholeSlideClassifier(TrainedClassifier):
    """model/settings.json."""

    whole_slides: dict[str, object]

    def settings(self) -> dict[str, object]:
        """Return the sections of the settings."""
        return {"tiles": self.tiles, "whole_slides": self.whole_slides, "train": self.train}


@dataclass(frozen=True)
class ComparedMap:
    """The heat map of a tile classifier, and its agreement with the map of the slide.

    Attributes:
        run: the other run.
        layers: of its heat map, one for each class.
        agreement: for the predicted class.
    """

    run: str
    layers: Sequence[Layer]
    agreement: Agreement


def whole_slide_pages(inputs: SlidePageInputs) -> WritePage:
    """Return the function that renders the page of a slide."""
    return slide_pages(inputs, read_whole_map, FILES)


def read_whole_map(
    inputs: SlidePageInputs,
    scored: ScoredSlide,
    grid: TileGrid,
    status: TileStatus,
    texts: MapTexts = _TEXTS,
) -> SlideMap:
    """Read the map of a slide, and the scores of the tile classifier that it is compared with."""
    classes = inputs.model.classes
    positions = read_map(inputs.files.results / "maps" / f"{scored.id}.parquet", scored.id, classes)
    tiles = positions.tile_scores(classes, grid, status)
    return SlideMap(
        tiles,
        _layers(positions, classes),
        f"{inputs.files.results_name}/maps/{scored.id}.parquet",
        texts,
        _compared(inputs, scored, positions),
    )


def _layers(positions: PositionMap, classes: Sequence[str]) -> list[Layer]:
    box, table = positions.picture_box(), positions.positions
    shown = [(name, f"Class activation of {name}", f"p_{name}") for name in classes]
    if "attention" in table:
        shown.append(("attention", ATTENTION_TITLE, "attention"))
        shown += [
            (f"Grad-CAM {name}", f"Grad-CAM of {name}", f"gradcam_{name}")
            for name in classes
            if f"gradcam_{name}" in table
        ]
    layers = []
    for name, title, column in shown:
        values = table[column].to_numpy(np.float64)
        if not column.startswith("p_"):
            values = values / (values.max() or 1)
        layers.append(Layer(name, title, data_uri(positions.paint(values), "image/png"), box))
    return layers


def _compared(
    inputs: SlidePageInputs, scored: ScoredSlide, positions: PositionMap
) -> ComparedMap | None:
    folder: Path | None = inputs.options.get("compare")
    if folder is None:
        return None
    classes = inputs.model.classes
    other = read_compared_scores(folder, scored.id, classes)
    if other is None:
        return None
    source = f"{folder}/evaluation/tiles.parquet: slide {scored.id!r}"
    scores, grid = other
    pair = matched(positions, scores, grid, classes, source)
    return ComparedMap(
        folder.name,
        tile_layers(scores, classes, grid, source),
        agreement([pair], classes.index(scored.call_mean)),
    )
