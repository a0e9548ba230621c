"""ROC curve, ROC AUC and average precision of the same cases for many sets of weights.

The cases are sorted once, and cumulative sums give the curve for each set of weights. The
definitions are those of scikit-learn with `sample_weight`: the area under the ROC curve by the
trapezoidal rule, tied scores as one point, and average precision as the sum of precisions weighted
by the steps in recall. The results equal scikit-learn's, hundreds of times faster.
"""

import numpy as np


def curve_counts(
    positive: np.ndarray, scores: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return false and true positives at each distinct threshold, in descending order.

    Args:
        positive: (n,) bool, the cases of the class.
        scores: (n,) the scores of the class.
        weights: (resamples, n) the weights of the cases.

    Returns:
        Two arrays (resamples, thresholds + 1); the first column, above all scores, is 0.
    """
    order = np.argsort(-scores, kind="stable")
    last_of_tie = np.append(np.diff(scores[order]) != 0, True)
    sorted_weights = weights[:, order].astype(np.float64)
    counts = []
    for kind in (~positive[order], positive[order]):
        sums = np.cumsum(sorted_weights * kind, axis=1)[:, last_of_tie]
        counts.append(np.concatenate([np.zeros((len(weights), 1)), sums], axis=1))
    return counts[0], counts[1]


def add_unseen(
    positive: np.ndarray,
    scores: np.ndarray,
    weights: np.ndarray,
    positive_weight: np.ndarray,
    negative_weight: np.ndarray,
    best: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Add two unseen cases: a positive one, of the class, and a negative one, of another class.

    Args:
        positive, scores, weights: as for `curve_counts`.
        positive_weight, negative_weight: (resamples,) the weights of the two cases.
        best: True: the positive case is ranked first and the negative one last; False: vice versa.
    """
    # Outside the range of the scores, so that they are not tied.
    ends = [scores.max() + 1, scores.min() - 1]
    return (
        np.append(positive, [True, False]),
        np.append(scores, ends if best else ends[::-1]),
        np.column_stack([weights, positive_weight, negative_weight]),
    )


def roc_curve_at(rates: np.ndarray, false: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Return the true positive rate of each curve at some false positive rates: (resamples, rates).

    Args:
        rates: false positive rates from 0 to 1.
        false, true: from `curve_counts`, with positive and negative cases in every row.
    """
    # One interpolation for all rows: row r is shifted by 2 r, so that the rows do not overlap.
    shift = 2.0 * np.arange(len(false))[:, None]
    true_rates = np.interp(
        (rates + shift).ravel(),
        (false / false[:, -1:] + shift).ravel(),
        (true / true[:, -1:]).ravel(),
    )
    return true_rates.reshape(len(false), len(rates))


def roc_auc(false: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Return the areas under the curves; NaN without positive or negative cases: (resamples,)."""
    area = (np.diff(false, axis=1) * (true[:, 1:] + true[:, :-1]) / 2).sum(axis=1)
    with np.errstate(invalid="ignore"):
        return area / (false[:, -1] * true[:, -1])


def average_precision(false: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Return the average precisions; NaN without positive or negative cases: (resamples,)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = true[:, 1:] / (true[:, 1:] + false[:, 1:])
        steps = np.diff(true, axis=1)
        total = (np.where(steps > 0, precision, 0) * steps).sum(axis=1) / true[:, -1]
    return np.where(false[:, -1] > 0, total, np.nan)
