"""A trained classifier of whole slides in memory."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from gigatile.errors import UserError
from gigatile.model import Model
from gigatile.records import encode_tile, write_records
from gigatile.settings.whole_slides import WholeSlideSettings
from gigatile.slides.reader import SlideError, open_slide
from gigatile.slides.slide_tiles import SlideTiles
from gigatile.slides.state import SlideFacts
from gigatile.tasks.slide_classification.scoring import (
    SlideClassifier,
    SlideScores,
    WholeSlideNetwork,
)
from gigatile.whole_slides.stored_tiles import open_tiles


@dataclass(frozen=True)
class WholeSlidePrediction:
    """The predicted class of a slide, and its map.

    Attributes:
        scores: the score of each class, rounded to six decimals.
        predicted: the class with the highest score (`call_mean` in slides.tsv).
        positions: a row per position of the encoder: x, y and side, in pixels of level 0;
            p_<class>…; with attention also attention and gradcam_<class>….
        facts: the size, scale and grid of the slide, and its discarded tiles.
    """

    scores: dict[str, float]
    predicted: str
    positions: pd.DataFrame
    facts: SlideFacts


class WholeSlideModel(Model):
    """A trained classifier of whole slides.

    Attributes:
        classes: the names of the classes.
        settings: the section `tiles`, as in training.
    """

    def __init__(self, model: Path, described: Path) -> None:
        """Load `model` (.keras); `described` is its settings.json.

        Raises:
            UserError: a file is missing or damaged, or the model is not the described one.
        """
        self._classifier = SlideClassifier(model, described, WholeSlideSettings().window)
        self.classes, self.settings = self._classifier.classes, self._classifier.tiles

    def predict(
        self, slide: Path | str, *, mpp: float | None = None, cores: int = 1
    ) -> WholeSlidePrediction:
        """Extract the tiles of a slide and score it.

        The tiles are in a temporary file while the slide is scored. Unlike the jobs of the
        workflow, this has no time limit, and the crash of a decoder ends the process.

        Args:
            slide: the slide's file.
            mpp: micrometres per pixel of level 0; None: as in the file.
            cores: number of threads that read and encode tiles.

        Raises:
            UserError: the slide cannot be used; the message says why.
        """
        scored, facts = scored_slide(self._classifier, Path(slide), mpp, cores)
        scores = dict(zip(self.classes, scored.scores.tolist(), strict=True))
        predicted = max(self.classes, key=lambda name: scores[name])
        return WholeSlidePrediction(scores, predicted, scored.positions, facts)


def scored_slide(
    network: WholeSlideNetwork, path: Path, mpp: float | None, cores: int
) -> tuple[SlideScores, SlideFacts]:
    """Extract the tiles of a slide and score it; see `WholeSlideModel.predict`.

    Returns:
        The scores and the map, with positions in pixels of level 0, and the facts of the slide.
    """
    settings = network.tiles.model_copy(update={"cores": cores})
    tiles = SlideTiles(path, path.stem, mpp, settings)
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "slide.tfrecord"
        try:
            with open_slide(path) as opened:
                write_records(records, map(encode_tile, tiles.tiles(path, opened)))
        except SlideError as error:
            raise UserError(f"{path}: {error}") from None
        grid = tiles.facts.grid
        assert grid is not None, "a slide with tiles has a grid"
        if fault := network.fault_of_scale(grid.mpp):
            raise UserError(f"{path}: {fault}")
        with open_tiles(records, grid) as stored:
            scored = network.score_with_map(stored)
    positions = scored.positions.copy()
    positions[["x", "y", "side"]] *= grid.extent / grid.size
    return SlideScores(scored.scores, positions), tiles.facts


def open_model(model: Path, described: Path) -> WholeSlideModel:
    """Open a model; see `gigatile.model.Model.open`."""
    return WholeSlideModel(model, described)
