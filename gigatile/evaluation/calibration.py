"""Calibration of scores: reliability curve, Brier score and expected calibration error.

The Brier score (Brier 1950, https://doi.org/10.1175/1520-0493(1950)078<0001:VOFEIT>2.0.CO;2) is the
mean over slides of the squared difference between scores and label; that of a class is the one of
`sklearn.metrics.brier_score_loss`.

The expected calibration error (Naeini et al. 2015, https://doi.org/10.1609/aaai.v29i1.9602; Guo et
al. 2017, https://arxiv.org/abs/1706.04599) sorts slides into bins of equal width by their highest
score, and is the mean over slides of the absolute difference between mean score and observed share
of their bin. The error of a class does the same with its score.

This error is biased: chance alone makes the shares of small bins differ from their scores, so even
a perfectly calibrated model has an error above 0. Labels that are drawn from the scores show how
large this error by chance is (consistency resampling; Bröcker and Smith 2007,
https://doi.org/10.1175/WAF993.1). `by_chance` is what it stays below in 95 % of cohorts: an error
below that is no evidence of bad calibration. The interval of the error is conservative:

- it ends at the 97.5 % quantile of the draws of the Bayesian bootstrap, which have the same bias;
- it begins at the error minus the 97.5 % quantile of the error by chance (the error is at most the
  true one plus that of the noise, by the triangle inequality), or at the lower end of the basic
  bootstrap, twice the error minus the upper end, whichever is lower.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from gigatile.evaluation.calibration_file import (
    Bin,
    Calibration,
    CalibrationError,
    CalibrationFile,
    OperatingPoints,
)
from gigatile.evaluation.decision_curve import decision_curve
from gigatile.evaluation.intervals import (
    ENDS,
    Weights,
    describe_intervals,
    draw_mean,
    rounded,
    too_few_patients,
    with_interval,
)
from gigatile.evaluation.metrics_file import Interval
from gigatile.evaluation.operating_points import figures_at
from gigatile.records.shuffle import key64, random64
from gigatile.settings.evaluate import EvaluationSettings

# Bins of equal width between 0 and 1.
BINS = 10
LEVEL_OF_CHANCE = 0.95


def evaluate_scores(
    predictions: pd.DataFrame,
    points: OperatingPoints,
    settings: EvaluationSettings,
    inputs: Mapping[str, str],
) -> CalibrationFile:
    """Compute calibration, and the figures at operating points.

    Args:
        predictions: a row per slide: slide, patient, label, p_<class>….
        points: the operating points, with the classes in the order of the scores.
        settings: number of draws for the intervals, and their seed.
        inputs: the SHA-256 of the files of the predictions, by name.
    """
    return CalibrationFile(
        classes=points.classes,
        intervals=describe_intervals(settings),
        n=len(predictions),
        patients=int(predictions["patient"].nunique()),
        calibration=calibrate(predictions, points.classes, settings),
        points=figures_at(points.points, predictions, settings),
        inputs=dict(inputs),
    )


def calibrate(
    predictions: pd.DataFrame, classes: Sequence[str], settings: EvaluationSettings
) -> Calibration:
    """Compute how the scores of slides agree with their labels; see `evaluate_scores`."""
    scores, labels = _scores_and_labels(predictions, classes)
    weights = Weights(predictions["patient"].to_numpy(), settings)
    squares = (scores - labels) ** 2
    drawn = _labels_by_chance(scores, predictions["patient"].to_numpy(), settings)
    highest, slides = scores.argmax(axis=1), np.arange(len(scores))
    return Calibration(
        brier=_mean(squares.sum(axis=1), weights, 2),
        brier_per_class={
            name: _mean(squares[:, number], weights, 1) for number, name in enumerate(classes)
        },
        error=_error(scores[slides, highest], labels[slides, highest], drawn == highest, weights),
        error_per_class={
            name: _error(scores[:, number], labels[:, number], drawn == number, weights)
            for number, name in enumerate(classes)
        },
        curve={
            name: _curve(scores[:, number], labels[:, number], weights)
            for number, name in enumerate(classes)
        },
        net_benefit={
            name: decision_curve(scores[:, number], labels[:, number], weights)
            for number, name in enumerate(classes)
        },
    )


def brier_score(
    predictions: pd.DataFrame, classes: Sequence[str], settings: EvaluationSettings
) -> Interval:
    """Compute the Brier score of all classes; see `evaluate_scores`."""
    scores, labels = _scores_and_labels(predictions, classes)
    weights = Weights(predictions["patient"].to_numpy(), settings)
    return _mean(((scores - labels) ** 2).sum(axis=1), weights, 2)


def _scores_and_labels(
    predictions: pd.DataFrame, classes: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores, and 1 for the class of each slide, else 0: (n, classes) float64 each."""
    scores = predictions[[f"p_{name}" for name in classes]].to_numpy(np.float64)
    labels = predictions["label"].to_numpy()[:, None] == np.array(classes, object)
    return scores, labels.astype(np.float64)


def bins_of(scores: np.ndarray) -> np.ndarray:
    """Return the bin of each score: (n,) whole numbers from 0.

    A score at an edge is in the bin below it, as in `sklearn.calibration.calibration_curve`.
    """
    return np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], scores)


def calibration_error(scores: np.ndarray, observed: np.ndarray) -> float:
    """Return the expected calibration error; NaN without slides.

    Args:
        scores: (n,) between 0 and 1.
        observed: (n,) 1 if the slide has the class of the score, else 0.
    """
    if not len(scores):
        return float("nan")
    gaps = np.bincount(bins_of(scores), scores - observed, minlength=BINS)
    return float(np.abs(gaps).sum() / len(scores))


def _mean(values: np.ndarray, weights: Weights, highest: float) -> Interval:
    every = np.ones(len(values), bool)
    patients = weights.patients(every)
    value = float(values.mean()) if len(values) else float("nan")
    draws = draw_mean(values, weights, 0, highest) if len(values) else None
    return with_interval(value, draws, patients, too_few_patients({"": patients}))


def _curve(scores: np.ndarray, labels: np.ndarray, weights: Weights) -> list[Bin]:
    bins, curve = bins_of(scores), []
    for number in range(BINS):
        inside = bins == number
        patients = weights.patients(inside)
        observed = with_interval(
            float(labels[inside].mean()) if inside.any() else float("nan"),
            draw_mean(np.where(inside, labels, np.nan), weights, 0, 1) if inside.any() else None,
            patients,
            too_few_patients({"": patients}),
        )
        curve.append(
            Bin(
                low=number / BINS,
                high=(number + 1) / BINS,
                slides=int(inside.sum()),
                score=rounded(scores[inside].mean()) if inside.any() else None,
                observed=observed,
            )
        )
    return curve


def _error(
    scores: np.ndarray, observed: np.ndarray, drawn: np.ndarray, weights: Weights
) -> CalibrationError:
    """Return a calibration error with its interval.

    Args:
        scores, observed: as for `calibration_error`.
        drawn: (resamples, n) bool: whether the slide has the class, drawn from its scores.
        weights: of the slides.
    """
    value, patients = calibration_error(scores, observed), weights.patients(scores >= 0)
    too_few = "the figure is not defined" if not len(scores) else too_few_patients({"": patients})
    low = high = by_chance = None
    chance = _errors_of(scores, drawn)
    if len(scores):
        by_chance = rounded(np.quantile(chance, LEVEL_OF_CHANCE))
    if too_few is None:
        upper = float(np.quantile(_draw_error(scores, observed, weights), ENDS[1]))
        lower = min(value - float(np.quantile(chance, ENDS[1])), 2 * value - upper)
        low, high = rounded(max(0.0, lower)), rounded(min(1.0, max(upper, value)))
    return CalibrationError(
        value=rounded(value) if len(scores) else None,
        low=low,
        high=high,
        patients=patients,
        no_interval=too_few,
        by_chance=by_chance,
    )


def _errors_of(scores: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Return the error for each set of labels, (resamples,); see `_error`."""
    bins = bins_of(scores)
    sums = np.bincount(bins, scores, minlength=BINS)
    # Products of zeros and ones: exact, whatever the order of the sums.
    observed = drawn.astype(np.float64) @ np.eye(BINS)[bins]
    errors: np.ndarray = np.abs(sums - observed).sum(axis=1) / max(1, len(scores))
    return errors


def _draw_error(scores: np.ndarray, observed: np.ndarray, weights: Weights) -> np.ndarray:
    """Return the error in all draws, (resamples,), with the worst possible unseen patient."""
    gaps, bins = scores - observed, bins_of(scores)
    total = np.zeros(len(weights.cases))
    for number in np.unique(bins):
        inside = bins == number
        total += np.abs((weights.cases[:, inside] * gaps[inside]).sum(axis=1))
    unseen = weights.unseen * weights.most_cases(np.ones(len(scores), bool))
    return (total + unseen) / (weights.cases.sum(axis=1) + unseen)


def _labels_by_chance(
    scores: np.ndarray, patients: np.ndarray, settings: EvaluationSettings
) -> np.ndarray:
    """Return the labels that slides have by chance if the scores are their probabilities.

    The slides of a patient share a random number, as they usually share a label.

    Args:
        scores: (n, classes).
        patients: (n,) names.
        settings: number of draws, and the seed.

    Returns:
        (resamples, n) numbers of classes.
    """
    names, patient_of = np.unique(patients, return_inverse=True)
    shape = (settings.resamples, len(names))
    key = key64("labels by chance", settings.seed)
    bits = random64(key, np.arange(np.prod(shape, dtype=int))) >> np.uint64(11)
    uniform = ((bits.astype(np.float64) + 0.5) / 2**53).reshape(shape)[:, patient_of]
    drawn = np.zeros((settings.resamples, len(scores)), np.int16)
    cumulated = np.cumsum(scores, axis=1)
    for number in range(scores.shape[1] - 1):
        drawn += uniform >= cumulated[:, number] / cumulated[:, -1]
    return drawn
