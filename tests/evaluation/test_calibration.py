"""Calibration equals scikit-learn's and a definition in plain Python; intervals are honest."""

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss

from gigatile.evaluation.calibration import BINS, calibrate, calibration_error
from gigatile.settings.evaluate import EvaluationSettings

CLASSES = ["a", "b", "c"]
SETTINGS = EvaluationSettings(resamples=1000)


def cohort(patients=60, slides=2, seed=0, sharpness=1.0, equal=True):
    """Return slides with calibrated scores, made sharper than they should be by `sharpness`."""
    random = np.random.default_rng(seed)
    rows = []
    for patient in range(patients):
        probabilities = random.dirichlet(np.ones(3))
        label = CLASSES[random.choice(3, p=probabilities)]
        for _ in range(slides if equal or patient % 2 else 1):
            scores = probabilities**sharpness / (probabilities**sharpness).sum()
            rows.append([f"p{patient}", label, *scores.round(6)])
    return pd.DataFrame(rows, columns=["patient", "label", "p_a", "p_b", "p_c"])


@pytest.mark.parametrize("seed", range(5))
def test_curve_and_brier_score_equal_scikit_learns(seed):
    slides = cohort(seed=seed, sharpness=2)
    measured = calibrate(slides, CLASSES, SETTINGS)
    scores = slides[["p_a", "p_b", "p_c"]].to_numpy()
    expected = brier_score_loss(slides["label"], scores, labels=CLASSES, scale_by_half=False)
    assert measured.brier.value == pytest.approx(expected, abs=1e-6)
    for name in CLASSES:
        label, score = slides["label"] == name, slides[f"p_{name}"]
        brier = measured.brier_per_class[name]
        assert brier.value == pytest.approx(brier_score_loss(label, score), abs=1e-6)
        assert brier.low < brier.value < brier.high and brier.patients == 60
        observed, predicted = calibration_curve(label, score, n_bins=BINS)
        bins = [item for item in measured.curve[name] if item.slides]
        assert [item.observed.value for item in bins] == pytest.approx(list(observed), abs=1e-6)
        assert [item.score for item in bins] == pytest.approx(list(predicted), abs=1e-6)
        assert len(measured.curve[name]) == BINS
        assert sum(item.slides for item in measured.curve[name]) == len(slides)


@pytest.mark.parametrize("seed", range(5))
def test_error_equals_its_definition(seed):
    slides = cohort(seed=seed, sharpness=3, equal=False)
    measured = calibrate(slides, CLASSES, SETTINGS)
    for name in CLASSES:
        pairs = [(row[f"p_{name}"], row["label"] == name) for _, row in slides.iterrows()]
        assert measured.error_per_class[name].value == pytest.approx(plain_error(pairs), abs=1e-6)
    pairs = []
    for _, row in slides.iterrows():
        best = max(CLASSES, key=lambda name: row[f"p_{name}"])
        pairs.append((row[f"p_{best}"], row["label"] == best))
    assert measured.error.value == pytest.approx(plain_error(pairs), abs=1e-6)


def plain_error(pairs):
    """Return the expected calibration error of pairs of score and label, bin by bin."""
    total = 0.0
    for number in range(BINS):
        low, high = number / BINS, (number + 1) / BINS
        inside = [p for p in pairs if low < p[0] <= high or (number == 0 and p[0] == 0)]
        if inside:
            score = sum(score for score, _ in inside) / len(inside)
            share = sum(label for _, label in inside) / len(inside)
            total += len(inside) / len(pairs) * abs(score - share)
    return total


def test_error_by_chance_separates_good_from_bad_calibration():
    errors = [calibrate(cohort(seed=seed), CLASSES, SETTINGS).error for seed in range(30)]
    # By chance 1.5 of 30 errors are above it, and 0 is outside 0.75 of the intervals.
    assert sum(error.value < error.by_chance for error in errors) >= 25
    assert sum(error.low == 0 for error in errors) >= 27
    bad = calibrate(cohort(patients=300, seed=1, sharpness=4), CLASSES, SETTINGS).error
    assert bad.value > 1.5 * bad.by_chance and bad.low > 0.05
    true_error = calibrate(cohort(20_000, 1, 2, 4), CLASSES, EvaluationSettings()).error.value
    assert bad.low < true_error < bad.high


def test_slides_of_a_patient_are_no_further_evidence():
    """Ten copies of each slide: the same intervals but for the unseen patient, not narrower."""
    once = cohort(patients=40, slides=1, seed=3)
    tenfold = once.loc[np.repeat(once.index, 10)].reset_index(drop=True)
    single, ten = (calibrate(slides, CLASSES, SETTINGS) for slides in (once, tenfold))
    for a, b in ((single.brier, ten.brier), (single.error, ten.error)):
        assert (a.value, a.low, a.high) == pytest.approx((b.value, b.low, b.high), abs=2e-6)
    assert single.error.by_chance == pytest.approx(ten.error.by_chance, abs=1e-6)
    for a, b in zip(single.curve["a"], ten.curve["a"], strict=True):
        assert (a.observed.low, a.observed.high) == pytest.approx((b.observed.low, b.observed.high))


def test_few_patients_have_figures_without_intervals():
    measured = calibrate(cohort(patients=4), CLASSES, SETTINGS)
    assert measured.brier.value is not None and measured.brier.low is None
    assert measured.error.no_interval == "fewer than 5 patients (4)"
    empty = [item for item in measured.curve["a"] if not item.slides]
    assert empty and all(item.score is None and item.observed.value is None for item in empty)


def test_perfect_scores_have_intervals_with_a_width():
    slides = pd.DataFrame(
        [(f"p{n}", "ab"[n % 2], float(n % 2 == 0), float(n % 2)) for n in range(20)],
        columns=["patient", "label", "p_a", "p_b"],
    )
    measured = calibrate(slides, ["a", "b"], SETTINGS)
    assert (measured.brier.value, measured.error.value) == (0, 0)
    assert measured.brier.high > 0.1 and measured.error.high > 0.1
    assert measured.brier.low == measured.error.low == 0


def test_order_of_the_rows_changes_nothing():
    slides = cohort(seed=4)
    shuffled = slides.sample(frac=1, random_state=1)
    first, other = (calibrate(table, CLASSES, SETTINGS) for table in (slides, shuffled))
    for a, b in ((first.brier, other.brier), (first.error, other.error)):
        assert a.model_dump() == pytest.approx(b.model_dump(), abs=2e-6)


def test_error_without_slides_is_not_defined():
    assert np.isnan(calibration_error(np.empty(0), np.empty(0)))


def test_scores_at_the_edges_are_in_scikit_learns_bins():
    scores = np.repeat(np.arange(11) / 10, 6)
    labels = np.tile([True, False, False], 22)
    labels[::7] = True
    slides = pd.DataFrame(
        {
            "patient": [f"p{n}" for n in range(66)],
            "label": np.where(labels, "a", "b"),
            "p_a": scores,
            "p_b": 1 - scores,
        }
    )
    measured = calibrate(slides, ["a", "b"], SETTINGS)
    observed, predicted = calibration_curve(labels, scores, n_bins=BINS)
    bins = [item for item in measured.curve["a"] if item.slides]
    assert [item.score for item in bins] == pytest.approx(list(predicted), abs=1e-6)
    assert [item.observed.value for item in bins] == pytest.approx(list(observed), abs=1e-6)
