"""Baselines equal scikit-learn's, are chosen on valid alone, and find what is there."""

import numpy as np
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from gigatile.evaluation.probes import (
    NEIGHBOURS,
    PENALTIES,
    fit_baselines,
    principal_components,
)


def cohort(seed: int, signal: float, counts=(60, 20, 40), classes: int = 3, dimensions: int = 30):
    random = np.random.default_rng(seed)
    labels = [np.arange(count) % classes for count in counts]
    centres = random.normal(0, signal, (classes, dimensions))
    return [(centres[some] + random.normal(size=(len(some), dimensions)), some) for some in labels]


def test_both_are_those_of_scikit_learn() -> None:
    (train, y), (valid, valid_y), (test, _) = cohort(1, 0.6)
    linear, nearest = fit_baselines(train, y, valid, valid_y, test, 3)
    scaler = StandardScaler().fit(train)
    probes = [
        LogisticRegression(C=c, max_iter=2000).fit(scaler.transform(train), y) for c in PENALTIES
    ]
    losses = [log_loss(valid_y, probe.predict_proba(scaler.transform(valid))) for probe in probes]
    expected = probes[int(np.argmin(losses))].predict_proba(scaler.transform(test))
    np.testing.assert_allclose(linear.scores, expected, atol=1e-6)
    knns = [KNeighborsClassifier(n, metric="cosine").fit(train, y) for n in NEIGHBOURS if n <= 60]
    best = knns[int(np.argmax([knn.score(valid, valid_y) for knn in knns]))]
    np.testing.assert_allclose(nearest.scores, best.predict_proba(test))
    assert nearest.setting.startswith(f"{best.n_neighbors} of")


def test_without_a_signal_they_guess_and_with_one_they_know() -> None:
    right = {0.0: [], 2.0: []}
    for signal, shares in right.items():
        for seed in range(8):
            (train, y), (valid, valid_y), (test, test_y) = cohort(seed, signal)
            for fitted in fit_baselines(train, y, valid, valid_y, test, 3):
                shares.append((fitted.scores.argmax(axis=1) == test_y).mean())
                np.testing.assert_allclose(fitted.scores.sum(axis=1), 1)
    assert abs(np.mean(right[0.0]) - 1 / 3) < 0.06
    assert np.mean(right[2.0]) > 0.98


def test_labels_and_slides_of_test_decide_nothing() -> None:
    (train, y), (valid, valid_y), (test, _) = cohort(3, 0.5)
    every = fit_baselines(train, y, valid, valid_y, test, 3)
    some = fit_baselines(train, y, valid, valid_y, test[:5], 3)
    for whole, part in zip(every, some, strict=True):
        assert whole.setting == part.setting
        np.testing.assert_allclose(whole.scores[:5], part.scores)


def test_few_slides_and_constant_numbers() -> None:
    (train, y), (valid, valid_y), (test, _) = cohort(4, 2.0, counts=(3, 3, 6))
    train[:, 0] = valid[:, 0] = test[:, 0] = 7
    linear, nearest = fit_baselines(train, y, valid, valid_y, test, 3)
    assert np.isfinite(linear.scores).all() and nearest.setting[0] in "13"


def test_components_are_those_of_scikit_learn() -> None:
    (train, _), (test, _), _ = cohort(5, 1.0)
    expected = PCA(2, svd_solver="full").fit(train).transform(test)
    actual = principal_components(test, train)
    np.testing.assert_allclose(np.abs(actual), np.abs(expected), atol=1e-8)
    np.testing.assert_allclose(principal_components(test, train[::-1]), actual, atol=1e-8)
    assert principal_components(train[:1], train[:1]).tolist() == [[0, 0]]
