"""Resampled figures equal scikit-learn's on the very cases that were drawn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from gigatile.evaluation.ranking import average_precision, curve_counts, roc_auc


@settings(deadline=None)
@given(st.integers(2, 30), st.integers(0, 10_000), st.sampled_from([2, 5, 1000]))
def test_each_resample_is_scikit_learns(n, seed, grades):
    """Few grades of scores make many ties; some resamples lack a side."""
    random = np.random.default_rng(seed)
    positive = random.integers(0, 2, n).astype(bool)
    scores = random.integers(0, grades, n) / grades
    weights = random.multinomial(n, np.ones(n) / n, size=8)
    counts = curve_counts(positive, scores, weights)
    for drawn, auc, precision in zip(
        weights, roc_auc(*counts), average_precision(*counts), strict=True
    ):
        truth, ranked = positive.repeat(drawn), scores.repeat(drawn)
        if 0 < truth.sum() < len(truth):
            assert auc == pytest.approx(roc_auc_score(truth, ranked), abs=1e-12)
            assert precision == pytest.approx(average_precision_score(truth, ranked), abs=1e-12)
        else:
            assert np.isnan(auc) and np.isnan(precision)
