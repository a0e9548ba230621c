"""Predictions of outcomes by a trained model of embeddings, and maps of where they come from."""

from pathlib import Path

import numpy as np
import pandas as pd

from gigatile.embeddings.stored import SlideEmbeddings
from gigatile.evaluation.outcome_scale import DescribedOutcome
from gigatile.json_models import read_model
from gigatile.tasks.slide_embedding.scoring import BagModel, map_of


class OutcomeModel(BagModel):
    """A trained model of numbers or risks of slides.

    Attributes:
        names: of its output.
        scale: what it means.
    """

    names = ("prediction",)

    def __init__(self, model: Path, described: Path) -> None:
        """Load a model; see `BagModel`."""
        super().__init__(model, described)
        self.scale = read_model(DescribedOutcome, described).outcome

    def output(self, values: np.ndarray) -> float:
        """Return the output for a slide, from embeddings (tiles, dimensions) float32."""
        outputs, *_ = self.logits(values)
        return float(outputs[0])

    def score_with_map(self, slide: SlideEmbeddings) -> tuple[np.ndarray, pd.DataFrame]:
        """Return the prediction of a slide, with six decimals, and its map.

        Returns:
            The number, or the log hazard ratio, (1,) float64. The map has a row for each tile: x, y
            and side in pixels of level 0; prediction, that of a slide of this tile's vector alone;
            with attention also `attention`, the share of the tile.
        """
        output, weights, alone = self.logits(slide.values)
        columns = {"prediction": self.scale.prediction(alone[:, 0])}
        predicted = self.scale.prediction(output.astype(np.float64))
        return predicted.round(6), map_of(slide, columns, weights)
