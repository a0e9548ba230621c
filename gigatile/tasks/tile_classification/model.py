"""A trained classifier of tiles in memory."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from pydantic import JsonValue

from gigatile.errors import UserError
from gigatile.json_models import JsonModel, read_model
from gigatile.model import Model
from gigatile.settings.section import check_section
from gigatile.settings.tiles import TileSettings
from gigatile.slides.reader import SlideError, open_slide
from gigatile.slides.slide_tiles import SlideTiles
from gigatile.slides.state import SlideFacts
from gigatile.tasks.tile_classification.scoring import TileClassifier, score_tiles
from gigatile.tasks.tile_classification.slide_predictions import predict_slide


class TilesOfModel(JsonModel):
    """The settings of the tiles in a classifier's settings.json."""

    tiles: dict[str, JsonValue]


@dataclass(frozen=True)
class SlidePrediction:
    """The predicted class of a slide, and the scores of its tiles.

    Attributes:
        scores: the mean score of the tiles for each class, rounded to six decimals.
        by_mean: the class with the highest mean score (`call_mean` in slides.tsv).
        by_vote: the class predicted for most tiles (`call_vote`).
        tiles: a row per tile: x and y of its corner and its extent, in pixels of level 0; tissue,
            as a fraction of its area; p_<class>… .
        facts: the size, scale and grid of the slide, and its discarded tiles.
    """

    scores: dict[str, float]
    by_mean: str
    by_vote: str
    tiles: pd.DataFrame
    facts: SlideFacts


class SlideModel(Model):
    """A trained classifier of tiles, applied to slides.

    Attributes:
        classes: the names of the classes.
        settings: the section `tiles`, as in training.
    """

    def __init__(self, model: Path, described: Path) -> None:
        """Load `model` (.keras); `described` is its settings.json.

        Raises:
            UserError: a file is missing or damaged, or the model is not the described one.
        """
        self._classifier = TileClassifier(model, described)
        self.classes = self._classifier.classes
        tiles = read_model(TilesOfModel, described).tiles
        self.settings = check_section(TileSettings, tiles, str(described))

    def predict(
        self, slide: Path | str, *, mpp: float | None = None, cores: int = 1
    ) -> SlidePrediction:
        """Extract the tiles of a slide and score them; no file is written.

        Tiles are scored while others are read, with one batch in memory at a time. Unlike the jobs
        of the workflow, this has no time limit, and the crash of a decoder ends the process.

        Args:
            slide: the slide's file.
            mpp: micrometres per pixel of level 0; None: as in the file.
            cores: number of threads that read and encode tiles.

        Raises:
            UserError: the slide cannot be used; the message says why.
        """
        path = Path(slide)
        settings = self.settings.model_copy(update={"cores": cores})
        tiles = SlideTiles(path, path.stem, mpp, settings)
        try:
            with open_slide(path) as opened:
                scored = score_tiles(self._classifier, tiles.tiles(path, opened))
        except SlideError as error:
            raise UserError(f"{path}: {error}") from None
        mean, by_mean, by_vote = predict_slide(scored.scores, self.classes)
        scores = dict(zip(self.classes, mean.tolist(), strict=True))
        return SlidePrediction(scores, by_mean, by_vote, scored.to_table(self.classes), tiles.facts)


def open_model(model: Path, described: Path) -> SlideModel:
    """Open a model; see `gigatile.model.Model.open`."""
    return SlideModel(model, described)
