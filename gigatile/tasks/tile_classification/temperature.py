"""The temperature of a classifier's scores, fitted on the tiles of the validation split.

Guo et al. 2017, https://proceedings.mlr.press/v70/guo17a.html: all logits are divided by a number,
which changes how sure the scores are, but not which class has the highest.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import minimize_scalar

from gigatile.json_models import JsonModel
from gigatile.records.shards import ShardReader
from gigatile.tasks.tile_classification.scoring import BATCH, TileClassifier, sharpened

# The temperature is sought between one over this and this.
MOST = 20.0
# Mean loss below which surer scores are always better.
LEAST_LOSS = 1e-3


class Fitted(JsonModel):
    """A fitted temperature.

    Attributes:
        temperature: the fitted value.
        tiles: how many it was fitted on.
        loss: mean loss of these tiles at this temperature.
        loss_before: the same at a temperature of 1.
    """

    temperature: float
    tiles: int
    loss: float
    loss_before: float


def fit_on_tiles(
    model: Path, described: Path, views: Sequence[str], manifest: Path, limit: int | None
) -> Fitted:
    """Fit the temperature of a model on the tiles that its validation scored.

    Args:
        model: the model (.keras).
        described: its settings.json.
        views: over which the scores are averaged.
        manifest: of the shards, which must have the split valid.
        limit: the most batches; None: all.

    Raises:
        UserError: a file is missing or damaged.
    """
    classifier = TileClassifier(model, described, views)
    reader = ShardReader(manifest, "valid")
    tiles = min(len(reader), BATCH * (limit or len(reader)))
    scores = np.empty((tiles, len(classifier.classes)), np.float32)
    for first in range(0, tiles, BATCH):
        numbers = range(first, min(first + BATCH, tiles))
        scores[numbers.start : numbers.stop] = classifier.score([reader[n] for n in numbers])
    labels = reader.classes_at(np.arange(tiles))
    reader.close()
    temperature = fit_temperature(scores, labels)
    return Fitted(
        temperature=temperature,
        tiles=tiles,
        loss=mean_loss(sharpened(scores, temperature), labels),
        loss_before=mean_loss(scores, labels),
    )


def fit_temperature(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the temperature with the least mean loss, to three decimals.

    Args:
        scores: (n, classes) float32, each row with the sum 1.
        labels: (n,) the class of each row.
    """
    # The loss is convex in the inverse of the temperature, and has one minimum in its logarithm.
    best = minimize_scalar(
        lambda log: mean_loss(sharpened(scores, float(np.exp(log))), labels),
        bounds=(-np.log(MOST), np.log(MOST)),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return round(float(np.exp(best.x)), 3)


def warning_of(fitted: Fitted) -> str:
    """Return a warning if the tiles do not determine the temperature; else an empty text."""
    if fitted.loss < LEAST_LOSS:
        why = "the scores of the validation tiles have almost no error"
    elif fitted.temperature > 0.99 * MOST:
        why = "the scores of the validation tiles hardly follow their labels"
    else:
        return ""
    return f"scores.temperature: {fitted.temperature:g} is not reliable, since {why}"


def mean_loss(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean of -log of the score of the label; a score of 0 is the smallest number."""
    of_label = scores[np.arange(len(labels)), labels].astype(np.float64)
    return float(-np.log(np.maximum(of_label, np.finfo(np.float32).tiny)).mean())
