"""Net benefit equals that of dcurves and its definition; its intervals contain it."""

import numpy as np
import pandas as pd
import pytest

from gigatile.evaluation.calibration import calibrate
from gigatile.evaluation.decision_curve import THRESHOLDS, decision_curve
from gigatile.evaluation.intervals import Weights
from gigatile.report.slides.figures import SIDE, decision
from gigatile.settings.evaluate import EvaluationSettings

SETTINGS = EvaluationSettings(resamples=1000)
# Labels and scores, and what dcurves 1.1.7 (`dca`) computes from them.
LABELS = "1101011010001000000101100001011100101110"
SCORES = (
    *(0.513, 0.763, 0.343, 0.533, 0.433, 0.823, 0.323, 0.303, 0.453, 0.323, 0.093, 0.353, 0.643),
    *(0.293, 0.143, 0.273, 0.133, 0.083, 0.393, 0.433, 0.583, 0.793, 0.253, 0.403, 0.133, 0.363),
    *(0.363, 0.253, 0.303, 0.603, 0.843, 0.413, 0.503, 0.133, 0.583, 0.183, 0.943, 0.763, 0.993),
    0.483,
)
BENEFITS = (
    *(0.421053, 0.394444, 0.379412, 0.35625, 0.325, 0.260714, 0.253846, 0.291667, 0.263636, 0.25),
    *(0.219444, 0.225, 0.175, 0.175, 0.175, 0.1, 0.05, 0.05, 0.025),
)
ALL_POSITIVE = (0.421053, 0.388889, 0.352941)


def weights(patients: int) -> Weights:
    return Weights(np.arange(patients), SETTINGS)


def test_net_benefit_equals_that_of_dcurves():
    labels = np.array([float(label) for label in LABELS])
    curve = decision_curve(np.array(SCORES), labels, weights(len(labels)))
    assert [item.threshold for item in curve] == list(THRESHOLDS)
    assert [item.model.value for item in curve] == pytest.approx(list(BENEFITS), abs=1e-6)
    assert [item.all_positive for item in curve[:3]] == pytest.approx(ALL_POSITIVE, abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_net_benefit_equals_its_definition(seed):
    """A score that equals the threshold is called positive."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, 50).astype(float)
    scores = random.integers(0, 21, 50) / 20
    for item in decision_curve(scores, labels, weights(50)):
        called = [(s, y) for s, y in zip(scores, labels, strict=True) if s >= item.threshold]
        true = sum(y == 1 for _, y in called)
        false = sum(y == 0 for _, y in called)
        odds = item.threshold / (1 - item.threshold)
        assert item.model.value == pytest.approx((true - odds * false) / 50, abs=1e-6)
        assert item.model.low <= item.model.value <= item.model.high
        assert item.model.low < item.model.high
        assert -odds <= item.model.low and item.model.high <= 1


def test_each_class_has_a_curve_over_its_patients():
    """The slides of one patient stay together: twice the slides do not make intervals narrower."""
    rows = [
        [f"p{number}", "a" if label == "1" else "b", score, 1 - score]
        for number, (label, score) in enumerate(zip(LABELS, SCORES, strict=True))
    ]
    columns = ["patient", "label", "p_a", "p_b"]
    once = calibrate(pd.DataFrame(rows, columns=columns), ["a", "b"], SETTINGS)
    twice = calibrate(pd.DataFrame(rows * 2, columns=columns), ["a", "b"], SETTINGS)
    for name in ("a", "b"):
        assert once.net_benefit[name] == twice.net_benefit[name]
    assert [item.model.value for item in once.net_benefit["a"]] == pytest.approx(
        list(BENEFITS), abs=1e-6
    )


def test_few_patients_and_no_slides():
    curve = decision_curve(np.array([0.9, 0.1]), np.array([1.0, 0.0]), weights(2))
    assert curve[0].model.low is None and curve[0].model.no_interval == "fewer than 5 patients (2)"
    plot = decision(curve)
    assert plot is not None and not plot.band
    assert decision_curve(np.zeros(0), np.zeros(0), weights(0)) == []
    assert decision([]) is None


def test_points_of_the_figure_are_inside_it():
    labels = np.array([float(label) for label in LABELS])
    plot = decision(decision_curve(np.array(SCORES), labels, weights(len(labels))))
    assert plot is not None and plot.band
    for line in (plot.model, plot.all_positive, plot.band):
        for point in line.split():
            x, y = map(float, point.split(","))
            assert 0 < x < SIDE and 0 <= y <= SIDE
    # The benefit of a useful model is above 0 at a threshold of 0.05: y points downwards.
    assert float(plot.model.split()[0].split(",")[1]) < float(plot.zero)
