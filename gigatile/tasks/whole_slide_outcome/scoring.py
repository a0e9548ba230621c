"""Predictions of outcomes by a trained network of whole slides, and their maps."""

from pathlib import Path

import numpy as np

from gigatile.evaluation.outcome_scale import DescribedOutcome
from gigatile.json_models import read_model
from gigatile.tasks.slide_classification.scoring import WholeSlideNetwork


class WholeSlideOutcomeNetwork(WholeSlideNetwork):
    """A trained model of numbers or risks of whole slides.

    Attributes:
        names: of its output.
        scale: what it means.
    """

    names = ("prediction",)

    def __init__(self, model: Path, described: Path, window: int, threads: int = 1) -> None:
        """Load a model; see `WholeSlideNetwork`."""
        super().__init__(model, described, window, threads)
        self.scale = read_model(DescribedOutcome, described).outcome

    def scores_of(self, logits: np.ndarray) -> np.ndarray:
        """Return the number, or the log hazard ratio, (1,)."""
        return self.scale.prediction(logits.astype(np.float64))

    def columns_of(self, logits: np.ndarray) -> dict[str, np.ndarray]:
        """Return `prediction`, what a slide of one position alone would get."""
        return {"prediction": self.scale.prediction(logits[:, 0])}
