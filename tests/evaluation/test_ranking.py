"""Weighted ranking metrics equal scikit-learn's, with whole numbers and others as weights."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from gigatile.evaluation.ranking import (
    add_unseen,
    average_precision,
    curve_counts,
    roc_auc,
    roc_curve_at,
)


@settings(deadline=None)
@given(st.integers(2, 30), st.integers(0, 10_000), st.sampled_from([2, 5, 1000]))
def test_whole_weights_equal_repeated_cases(n, seed, grades):
    """With ties, if there are few grades; some resamples lack positive or negative cases."""
    random = np.random.default_rng(seed)
    positive = random.integers(0, 2, n).astype(bool)
    scores = random.integers(0, grades, n) / grades
    weights = random.multinomial(n, np.ones(n) / n, size=8)
    counts = curve_counts(positive, scores, weights)
    for repeats, auc, precision in zip(
        weights, roc_auc(*counts), average_precision(*counts), strict=True
    ):
        labels, repeated = positive.repeat(repeats), scores.repeat(repeats)
        if 0 < labels.sum() < len(labels):
            assert auc == pytest.approx(roc_auc_score(labels, repeated), abs=1e-12)
            assert precision == pytest.approx(average_precision_score(labels, repeated), abs=1e-12)
        else:
            assert np.isnan(auc) and np.isnan(precision)


@settings(deadline=None)
@given(st.integers(2, 30), st.integers(0, 10_000), st.sampled_from([2, 5, 1000]))
def test_any_weights_equal_scikit_learns_sample_weight(n, seed, grades):
    random = np.random.default_rng(seed)
    positive = np.append(random.integers(0, 2, n).astype(bool), [True, False])
    scores = random.integers(0, grades, n + 2) / grades
    weights = random.exponential(size=(4, n + 2))
    counts = curve_counts(positive, scores, weights)
    rates = np.array([0.05, 0.5, 1.0])
    curves = roc_curve_at(rates, *counts)
    for row, weight in enumerate(weights):
        options = {"sample_weight": weight}
        auc, precision = roc_auc(*counts)[row], average_precision(*counts)[row]
        assert auc == pytest.approx(roc_auc_score(positive, scores, **options), abs=1e-9)
        expected = average_precision_score(positive, scores, **options)
        assert precision == pytest.approx(expected, abs=1e-9)
        fpr, tpr, _ = roc_curve(positive, scores, drop_intermediate=False, **options)
        assert curves[row] == pytest.approx(np.interp(rates, fpr, tpr), abs=1e-9)


def test_unseen_cases_are_ranked_first_and_last():
    positive, scores = np.array([True, False, True]), np.array([0.2, 0.5, 0.7])
    weights, unit = np.ones((1, 3)), np.ones(1)
    for best, auc in ((True, 5 / 6), (False, 1 / 6)):
        added = add_unseen(positive, scores, weights, unit, unit, best)
        assert roc_auc(*curve_counts(*added))[0] == pytest.approx(auc)
