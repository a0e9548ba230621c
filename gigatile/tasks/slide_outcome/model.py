"""A trained model of numbers or risks of slides in memory."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from gigatile.model import Model
from gigatile.slides.state import SlideFacts
from gigatile.tasks.slide_embedding.model import embedded_slide
from gigatile.tasks.slide_outcome.scoring import OutcomeModel


@dataclass(frozen=True)
class OutcomePrediction:
    """The predicted outcome of a slide, and its map.

    Attributes:
        predicted: the number, or the log hazard ratio, rounded to six decimals.
        positions: a row per tile: x, y and side, in pixels of level 0; prediction; with attention
            also attention.
        facts: the size, scale and grid of the slide, and its discarded tiles.
    """

    predicted: float
    positions: pd.DataFrame
    facts: SlideFacts


class SlideOutcomeModel(Model):
    """A trained model of numbers or risks of slides.

    Attributes:
        kind: `number` or `survival`.
        settings: the section `tiles`, as in training.
    """

    def __init__(self, model: Path, described: Path) -> None:
        """Load `model` (.keras); `described` is its settings.json.

        Raises:
            UserError: a file is missing or damaged, or the model is not the described one.
        """
        self._model = OutcomeModel(model, described)
        self.kind, self.settings = self._model.scale.kind, self._model.tiles

    def predict(
        self,
        slide: Path | str,
        *,
        encoder: Path | str | None = None,
        mpp: float | None = None,
        cores: int = 1,
    ) -> OutcomePrediction:
        """Predict the outcome of a slide.

        The arguments and errors are those of
        `gigatile.tasks.slide_embedding.model.EmbeddingModel.predict`.
        """
        embedded, facts = embedded_slide(self._model, Path(slide), encoder, mpp, cores)
        predicted, positions = self._model.score_with_map(embedded)
        return OutcomePrediction(float(predicted[0]), positions, facts)


def open_model(model: Path, described: Path) -> SlideOutcomeModel:
    """Open a model; see `gigatile.model.Model.open`."""
    return SlideOutcomeModel(model, described)
