"""Baselines on the mean embedding of each slide: a linear probe and nearest neighbours.

Both are fitted to the slides of train, and their one setting is chosen on those of valid: by the
log loss of the probe, and by the accuracy of the neighbours, the simpler one of equals.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

# Strengths of the L2 penalty, as scikit-learn's C: from the strongest to the weakest.
PENALTIES = tuple(10.0**power for power in range(-4, 3))
NEIGHBOURS = (1, 3, 5, 11, 21, 51)


@dataclass(frozen=True)
class Fitted:
    """The scores of a baseline.

    Attributes:
        name: for the report.
        setting: what was chosen on valid, for the report.
        scores: of the test slides, (n, classes) float64; each row adds up to 1.
    """

    name: str
    setting: str
    scores: np.ndarray


def fit_baselines(
    train: np.ndarray,
    train_labels: np.ndarray,
    valid: np.ndarray,
    valid_labels: np.ndarray,
    test: np.ndarray,
    classes: int,
) -> list[Fitted]:
    """Fit both baselines.

    Args:
        train, valid, test: mean embeddings, (n, dimensions).
        train_labels, valid_labels: numbers of the classes, (n,).
        classes: how many there are. Each has a slide in train.
    """
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    deviation[deviation == 0] = 1
    scaled = [(some - mean) / deviation for some in (train, valid, test)]
    return [
        _linear(scaled[0], train_labels, scaled[1], valid_labels, scaled[2]),
        _neighbours(train, train_labels, valid, valid_labels, test, classes),
    ]


def _linear(
    train: np.ndarray,
    train_labels: np.ndarray,
    valid: np.ndarray,
    valid_labels: np.ndarray,
    test: np.ndarray,
) -> Fitted:
    probes = [
        LogisticRegression(C=penalty, max_iter=2000).fit(train, train_labels)
        for penalty in PENALTIES
    ]
    losses = [
        log_loss(valid_labels, probe.predict_proba(valid), labels=probe.classes_)
        for probe in probes
    ]
    best = int(np.argmin(np.round(losses, 6)))
    return Fitted(
        "linear probe",
        f"logistic regression, C {PENALTIES[best]:g}",
        probes[best].predict_proba(test).astype(np.float64),
    )


def _neighbours(
    train: np.ndarray,
    train_labels: np.ndarray,
    valid: np.ndarray,
    valid_labels: np.ndarray,
    test: np.ndarray,
    classes: int,
) -> Fitted:
    counts = [count for count in NEIGHBOURS if count <= len(train)]
    ranked, ranked_test = _ranked_labels(train, train_labels, (valid, test))
    hits = [(_shares(ranked, n, classes).argmax(axis=1) == valid_labels).sum() for n in counts]
    best = counts[int(np.argmax(hits))]
    return Fitted(
        "nearest neighbours",
        f"{best} of the largest cosine similarity",
        _shares(ranked_test, best, classes),
    )


def _ranked_labels(
    train: np.ndarray, labels: np.ndarray, queries: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return for each query the labels of the slides of train, the most similar first."""

    def normed(some: np.ndarray) -> np.ndarray:
        length = np.linalg.norm(some, axis=1, keepdims=True)
        return some / np.where(length == 0, 1, length)

    known = normed(train)
    # Sorted by similarities with ten decimals, so that rounding does not decide between equals.
    return [
        labels[np.argsort(-np.round(normed(some) @ known.T, 10), axis=1, kind="stable")]
        for some in queries
    ]


def _shares(ranked: np.ndarray, count: int, classes: int) -> np.ndarray:
    """Return the share of each class among the first labels: (n, classes)."""
    nearest = ranked[:, :count]
    return np.stack([(nearest == label).mean(axis=1) for label in range(classes)], axis=1)


def principal_components(values: np.ndarray, fitted_to: np.ndarray, count: int = 2) -> np.ndarray:
    """Return the first principal components of mean embeddings: (n, count) float64.

    The sign of a component is such that its largest weight is positive.

    Args:
        values: (n, dimensions).
        fitted_to: (m, dimensions), to which the components are fitted.
        count: of components; fewer if there are fewer slides or dimensions, the others are 0.
    """
    mean = fitted_to.mean(axis=0)
    _, _, axes = np.linalg.svd(fitted_to - mean, full_matrices=False)
    axes = axes[:count]
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
    components = (values - mean) @ (axes * np.sign(largest)).T
    return np.pad(components, ((0, 0), (0, count - components.shape[1])))
