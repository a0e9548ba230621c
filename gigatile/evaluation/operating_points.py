"""Operating points: thresholds chosen on the validation split, and the figures of a cohort there.

A slide is called positive for a class if its score is at least the threshold. For a wanted
sensitivity, the threshold is the highest score that gives at least this sensitivity on the
validation slides, so that the specificity is as high as possible; for a wanted specificity, it is
the lowest score that gives at least this one. Tied scores are called alike. A threshold is always a
score of a validation slide, as in `sklearn.metrics.roc_curve`: none is chosen above all scores,
where no slide would be called positive.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from gigatile.evaluation.calibration_file import (
    Criterion,
    OperatingPoint,
    OperatingPoints,
    PointFigures,
)
from gigatile.evaluation.intervals import (
    Weights,
    draw_mean,
    rounded,
    too_few_patients,
    with_interval,
)
from gigatile.evaluation.metrics_file import Interval
from gigatile.settings.evaluate import EvaluationSettings


def choose_points(
    predictions: pd.DataFrame,
    classes: Sequence[str],
    wanted: Mapping[Criterion, Sequence[float]],
    inputs: Mapping[str, str],
) -> OperatingPoints:
    """Choose the operating points of each class against the others.

    Args:
        predictions: a row per slide of the validation split: patient, label, p_<class>….
        classes: in the order of the scores.
        wanted: the wanted sensitivities and specificities.
        inputs: the SHA-256 of the files of the predictions, by name.
    """
    points = [
        _choose(
            predictions[f"p_{name}"].to_numpy(np.float64),
            (predictions["label"] == name).to_numpy(bool),
            name,
            criterion,
            rate,
        )
        for name in classes
        for criterion, rates in wanted.items()
        for rate in rates
    ]
    return OperatingPoints(
        classes=list(classes),
        split="valid",
        slides=len(predictions),
        patients=int(predictions["patient"].nunique()),
        labels={name: int((predictions["label"] == name).sum()) for name in classes},
        points=points,
        inputs=dict(inputs),
    )


def _choose(
    scores: np.ndarray, positive: np.ndarray, name: str, criterion: Criterion, rate: float
) -> OperatingPoint:
    threshold = reason = sensitivity = specificity = None
    if not positive.any():
        reason = f"no validation slide of class {name}"
    elif positive.all():
        reason = f"all validation slides are of class {name}"
    else:
        threshold = threshold_of(scores, positive, criterion, rate)
        if threshold is None:
            reason = f"no score of a validation slide gives a specificity of {rate:g}"
        else:
            called = scores >= threshold
            sensitivity = rounded(called[positive].mean())
            specificity = rounded((~called[~positive]).mean())
    return OperatingPoint(
        positive=name,
        criterion=criterion,
        wanted=rate,
        threshold=threshold,
        reason=reason,
        sensitivity=sensitivity,
        specificity=specificity,
    )


def threshold_of(
    scores: np.ndarray, positive: np.ndarray, criterion: Criterion, rate: float
) -> float | None:
    """Return the threshold for a wanted sensitivity or specificity; None: no score gives it.

    Args:
        scores: (n,) of the class.
        positive: (n,) bool, the slides of the class; at least one, and not all.
        criterion: what is wanted.
        rate: at least this much of it, above 0 and up to 1.
    """
    values = np.unique(scores)
    side = np.sort(scores[positive] if criterion == "sensitivity" else scores[~positive])
    below = np.searchsorted(side, values, side="left")
    right = len(side) - below if criterion == "sensitivity" else below
    # In whole slides: 19 of 20 are 0.95, whatever the rounding of a division.
    enough = values[right >= math.ceil(rate * len(side) - 1e-9)]
    if not len(enough):
        return None
    return float(enough[-1] if criterion == "sensitivity" else enough[0])


def figures_at(
    points: Sequence[OperatingPoint], predictions: pd.DataFrame, settings: EvaluationSettings
) -> list[PointFigures]:
    """Compute the figures of a cohort at each operating point; not defined without a threshold.

    Args:
        points: chosen on other slides.
        predictions: a row per slide: patient, label, p_<class>….
        settings: number of draws for the intervals, and their seed.
    """
    weights = Weights(predictions["patient"].to_numpy(), settings)
    figures = []
    for point in points:
        if point.threshold is None:
            none = Interval(
                value=None, low=None, high=None, patients=0, no_interval=point.reason or ""
            )
            figures.append(
                PointFigures(
                    point=point, called=0, sensitivity=none, specificity=none, ppv=none, npv=none
                )
            )
            continue
        called = predictions[f"p_{point.positive}"].to_numpy(np.float64) >= point.threshold
        positive = (predictions["label"] == point.positive).to_numpy(bool)
        name = point.positive
        figures.append(
            PointFigures(
                point=point,
                called=int(called.sum()),
                sensitivity=_share(called, positive, weights, f"of class {name}"),
                specificity=_share(~called, ~positive, weights, "of the other classes"),
                ppv=_share(positive, called, weights, f"with a slide called {name}"),
                npv=_share(~positive, ~called, weights, f"with a slide not called {name}"),
            )
        )
    return figures


def _share(right: np.ndarray, counted: np.ndarray, weights: Weights, group: str) -> Interval:
    """Return the share of `right` among the slides that are counted, both (n,) bool."""
    patients = weights.patients(counted)
    value, draws = float("nan"), None
    if counted.any():
        value = float(right[counted].mean())
        draws = draw_mean(np.where(counted, right, np.nan), weights, 0, 1)
    return with_interval(value, draws, patients, too_few_patients({group: patients}))
