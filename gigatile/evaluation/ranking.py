"""ROC AUC and average precision of many resamples of the same cases at once.

A resample is a weight per case: how often it was drawn. The cases are sorted once and every
resample's curve follows by cumulative sums, with the definitions of scikit-learn: the area
under the ROC curve by the trapezoidal rule, tied scores as one point, and average precision as the
sum of precisions weighted by the steps in recall. Hundreds of times as fast as calling
scikit-learn for each resample, and equal to it.
"""

import numpy as np


def curve_counts(
    positive: np.ndarray, scores: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return false and true positives at each distinct threshold, from the highest down.

    Args:
        positive: (n,) bool, the cases of the class.
        scores: (n,) the class's scores.
        weights: (resamples, n) how often each case counts.

    Returns:
        Two arrays (resamples, thresholds + 1); the first column is 0, above every score.
    """
    order = np.argsort(-scores, kind="stable")
    last_of_tie = np.append(np.diff(scores[order]) != 0, True)
    sorted_weights = weights[:, order].astype(np.float64)
    counts = []
    for kind in (~positive[order], positive[order]):
        sums = np.cumsum(sorted_weights * kind, axis=1)[:, last_of_tie]
        counts.append(np.concatenate([np.zeros((len(weights), 1)), sums], axis=1))
    return counts[0], counts[1]


def roc_auc(false: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Return the area under each resample's ROC curve; NaN without both kinds: (resamples,)."""
    area = (np.diff(false, axis=1) * (true[:, 1:] + true[:, :-1]) / 2).sum(axis=1)
    with np.errstate(invalid="ignore"):
        return area / (false[:, -1] * true[:, -1])


def average_precision(false: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Return each resample's average precision; NaN without both kinds: (resamples,)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = true[:, 1:] / (true[:, 1:] + false[:, 1:])
        steps = np.diff(true, axis=1)
        total = (np.where(steps > 0, precision, 0) * steps).sum(axis=1) / true[:, -1]
    return np.where(false[:, -1] > 0, total, np.nan)
