"""Survival figures equal those of lifelines; concordance has intervals that cover."""

import numpy as np
import pandas as pd
import pytest

from gigatile.evaluation.outcomes import evaluate_outcomes, median_risk
from gigatile.evaluation.survival import (
    CumulativeHazard,
    concordance,
    cumulative_hazard,
    logrank_p,
    survival_curve,
    weighted_pairs,
)
from gigatile.settings.evaluate import EvaluationSettings

# Of `cohort(seed)`, computed by lifelines 0.30.3: concordance_index, p of logrank_test, and at the
# times 1, 3, 6 and 9 KaplanMeierFitter with its intervals, and NelsonAalenFitter without smoothing.
TIMES = [1.0, 3.0, 6.0, 9.0]
LIFELINES = {
    0: (
        *(0.73184602, 5.9896102e-07, [0.74893617, 0.59772819, 0.37990707, 0.27701557]),
        [
            [0.61845414, 0.84035447],
            [0.4577823, 0.71252684],
            [0.23531594, 0.52339875],
            [0.13099055, 0.44455003],
        ],
        [0.26382979, 0.48093991, 0.90682873, 1.1984954],
    ),
    1: (
        *(0.7176, 0.0015330569, [0.7474359, 0.48926306, 0.26564475, 0.10330629]),
        [
            [0.6163667, 0.83935586],
            [0.34951667, 0.61500429],
            [0.14515932, 0.40232136],
            [0.02388753, 0.25159954],
        ],
        [0.27051282, 0.66568928, 1.22509099, 2.05009099],
    ),
    2: (
        *(0.64898785, 0.10175626, [0.76530612, 0.52668097, 0.2730005, 0.14742027]),
        [
            [0.63604443, 0.85375112],
            [0.38346588, 0.65123601],
            [0.150273, 0.41093388],
            [0.05481311, 0.28303284],
        ],
        [0.24829932, 0.60268106, 1.21322731, 1.76322731],
    ),
}


def cohort(seed: int, patients: int = 60):
    """Return risks, times and events, with ties in all of them."""
    random = np.random.default_rng(seed)
    risks = random.normal(size=patients).round(1)
    to_event = np.ceil(random.exponential(np.exp(-risks)) * 10) / 2
    to_end = np.ceil(random.exponential(1.5, patients) * 10) / 2
    return risks, np.minimum(to_event, to_end), to_event <= to_end


@pytest.mark.parametrize("seed", LIFELINES)
def test_figures_equal_those_of_lifelines(seed):
    risks, times, events = cohort(seed)
    expected, p, survival, intervals, hazards = LIFELINES[seed]
    assert concordance(risks, times, events) == pytest.approx(expected, abs=1e-8)
    assert logrank_p(times, events, risks > 0) == pytest.approx(p, rel=1e-6)
    curve = survival_curve(times, events)
    last = np.searchsorted(curve.times, TIMES, side="right") - 1
    np.testing.assert_allclose(curve.values[last], survival, atol=1e-8)
    np.testing.assert_allclose(np.stack([curve.low, curve.high], 1)[last], intervals, atol=1e-7)
    hazard = cumulative_hazard(times, events)
    np.testing.assert_allclose(hazard.at(np.array(TIMES)), hazards, atol=1e-8)
    assert hazard.at(np.array([0.0]))[0] == 0
    np.testing.assert_array_equal(curve.censored, np.sort(times[~events]))


def test_concordance_equals_plain_loops():
    for seed in range(5):
        risks, times, events = cohort(seed, 300 if seed == 4 else 40)
        weights = np.random.default_rng(seed).exponential(size=(1 + 200 * seed, len(risks)))
        weights[0] = 1
        agreeing, comparable = np.zeros(len(weights)), np.zeros(len(weights))
        for i in range(len(risks)):
            for j in range(len(risks)):
                if events[i] and (times[j] > times[i] or (times[j] == times[i] and not events[j])):
                    pair = weights[:, i] * weights[:, j]
                    comparable += pair
                    agreeing += pair * (1 if risks[i] > risks[j] else 0.5 * (risks[i] == risks[j]))
        assert concordance(risks, times, events) == pytest.approx(agreeing[0] / comparable[0])
        np.testing.assert_allclose(
            weighted_pairs(risks, times, events, weights), (agreeing, comparable), rtol=1e-9
        )


def test_degenerate_cohorts():
    times, none = np.array([1.0, 2.0, 3.0]), np.zeros(3, bool)
    assert concordance(np.zeros(3), times, none) is None
    assert logrank_p(times, none, np.array([True, False, False])) is None
    assert logrank_p(times, ~none, ~none) is None
    assert len(survival_curve(times, none).times) == 0
    curve = survival_curve(times, ~none)
    assert curve.values[-1] == curve.low[-1] == curve.high[-1] == 0


def slides(seed: int, patients: int, unit: str = "survival") -> pd.DataFrame:
    """Return predictions of slides, one or two for each patient."""
    risks, times, events = cohort(seed, patients)
    rows = []
    for number, (risk, time, event) in enumerate(zip(risks, times, events, strict=True)):
        label = f"{float(time)!r} {'event' if event else 'censored'}"
        value = float(3 + 2 * risk + np.random.default_rng(number).normal())
        for k in range(1 + number % 2):
            predicted = risk + 0.1 * k
            text = label if unit == "survival" else repr(value)
            number_or_risk = predicted if unit == "survival" else 3 + 2 * predicted
            rows.append([f"S{number}-{k}", f"P{number}", text, number_or_risk])
    return pd.DataFrame(rows, columns=["slide", "patient", "label", "predicted"])


SETTINGS = EvaluationSettings(resamples=1000)


def test_survival_is_evaluated_by_patient_with_the_threshold_of_valid():
    test, valid = slides(0, 60), slides(1, 40)
    metrics = evaluate_outcomes(test, median_risk(valid), SETTINGS, {})
    risks = test.groupby("patient")["predicted"].mean()
    labels = test.groupby("patient")["label"].first().str.split()
    times, events = labels.str[0].astype(float), labels.str[1] == "event"
    assert (metrics.kind, metrics.n, metrics.patients) == ("survival", 90, 60)
    expected = concordance(risks.to_numpy(), times.to_numpy(), events.to_numpy())
    assert metrics.concordance.value == pytest.approx(expected, abs=1e-6)
    assert metrics.concordance.low < expected < metrics.concordance.high
    figures = metrics.survival
    threshold = valid.groupby("patient")["predicted"].mean().median()
    assert figures.threshold == pytest.approx(threshold, abs=1e-6)
    high = (risks > threshold).to_numpy()
    assert figures.high_risk.patients == high.sum() and figures.events == events.sum()
    p = logrank_p(times.to_numpy(), events.to_numpy(), high)
    assert figures.logrank_p == pytest.approx(p, rel=1e-3)
    assert metrics.numbers is None


def test_numbers_are_evaluated_by_slide():
    test = slides(0, 60, "number")
    metrics = evaluate_outcomes(test, median_risk(test), SETTINGS, {})
    values, predicted = test["label"].astype(float), test["predicted"]
    errors = predicted - values
    numbers = metrics.numbers
    assert metrics.kind == "number" and metrics.survival is None
    assert numbers.mean_absolute_error.value == pytest.approx(errors.abs().mean(), abs=1e-6)
    error = numbers.root_mean_squared_error
    assert error.value == pytest.approx(np.sqrt((errors**2).mean()), abs=1e-6)
    assert error.low < error.value < error.high
    expected = 1 - (errors**2).sum() / ((values - values.mean()) ** 2).sum()
    assert numbers.r_squared.value == pytest.approx(expected, abs=1e-6)
    correlation = np.corrcoef(values, predicted)[0, 1]
    assert numbers.correlation.value == pytest.approx(correlation, abs=1e-6)
    for interval in (numbers.r_squared, numbers.correlation):
        assert -1 < interval.low < interval.value < interval.high < 1
    agreeing = concordance(-predicted.to_numpy(), values.to_numpy(), np.ones(len(test), bool))
    assert metrics.concordance.value == pytest.approx(agreeing, abs=1e-6)


def test_concordance_of_a_random_model_is_covered():
    """Of 100 cohorts of 20 patients, the intervals of at least 90 contain one half."""
    covered = 0
    for seed in range(100):
        test = slides(seed, 20)
        order = np.random.default_rng(seed).permutation(len(test))
        by_chance = test.assign(predicted=np.random.default_rng(seed + 1).normal(size=len(order)))
        interval = evaluate_outcomes(by_chance, median_risk(test), SETTINGS, {}).concordance
        covered += interval.low <= 0.5 <= interval.high
    assert covered >= 90


@pytest.mark.parametrize("patients", [10, 40])
@pytest.mark.parametrize("correlation", [0.5, 0.9])
def test_intervals_of_numbers_cover(patients, correlation):
    """Of 100 cohorts, those of R² and of the correlation contain the true value in 93 or more."""
    covered = {"r_squared": 0, "correlation": 0}
    # Predicted is 0.8 of what can be known of the number.
    known = correlation**2
    true = {"r_squared": 1 - (1 - known + 0.04 * known), "correlation": correlation}
    for seed in range(100):
        random = np.random.default_rng(seed)
        signal, noise = random.normal(size=(2, patients))
        values = correlation * signal + np.sqrt(1 - known) * noise
        test = pd.DataFrame(
            {
                "slide": [f"S{k}" for k in range(patients)],
                "patient": [f"P{k}" for k in range(patients)],
                "label": [repr(float(value)) for value in values],
                "predicted": 0.8 * correlation * signal,
            }
        )
        numbers = evaluate_outcomes(test, median_risk(test), SETTINGS, {}).numbers
        for name in covered:
            interval = getattr(numbers, name)
            covered[name] += interval.low <= true[name] <= interval.high
    assert min(covered.values()) >= 93, covered


def exponential(seed: int, patients: int, ratio: float):
    """Return log hazard ratios, and times of events with `ratio` times the predicted hazard."""
    random = np.random.default_rng(seed)
    risks = 0.8 * random.normal(size=patients)
    to_event = random.exponential(np.exp(-risks) / ratio)
    to_end = random.exponential(1.0, patients)
    return risks, np.minimum(to_event, to_end), to_event <= to_end


# Of a patient with the risk 0, the hazard is 1 at any time.
STEPS = np.linspace(0.001, 30, 30_000)
HAZARD = CumulativeHazard(STEPS, STEPS)


@pytest.mark.parametrize("patients", [10, 60])
@pytest.mark.parametrize("ratio", [1.0, 2.0])
def test_intervals_of_the_events_ratio_cover(patients, ratio):
    """Of 100 cohorts, 93 or more contain how many more events happen than the model expects."""
    covered = 0
    for seed in range(100):
        risks, times, events = exponential(seed, patients, ratio)
        labels = [
            f"{float(time)!r} {'event' if event else 'censored'}"
            for time, event in zip(times, events, strict=True)
        ]
        names = [f"P{number}" for number in range(patients)]
        test = pd.DataFrame({"slide": names, "patient": names, "label": labels, "predicted": risks})
        metrics = evaluate_outcomes(test, 0.0, SETTINGS, {}, HAZARD)
        interval = metrics.survival.events_ratio
        expected = events.sum() / (times * np.exp(risks)).sum()
        assert interval.value == pytest.approx(expected, rel=2e-2)
        covered += interval.low <= ratio <= interval.high
    assert covered >= 93
    assert evaluate_outcomes(test, 0.0, SETTINGS, {}).survival.events_ratio is None


def test_as_many_events_happen_in_training_as_are_expected():
    """The expected events of the Nelson-Aalen estimate are the observed ones, exactly."""
    _, times, events = cohort(0)
    hazard = cumulative_hazard(times, events)
    labels = [
        f"{float(time)!r} {'event' if event else 'censored'}"
        for time, event in zip(times, events, strict=True)
    ]
    names = [f"P{number}" for number in range(len(times))]
    train = pd.DataFrame({"slide": names, "patient": names, "label": labels, "predicted": 0.0})
    metrics = evaluate_outcomes(train, 0.0, SETTINGS, {}, hazard)
    assert metrics.survival.events_ratio.value == pytest.approx(1, abs=1e-6)


def test_equal_numbers_have_no_share_of_variance_and_no_correlation():
    test = slides(0, 20, "number").assign(label="3.0")
    numbers = evaluate_outcomes(test, median_risk(test), SETTINGS, {}).numbers
    assert numbers.r_squared.value is None and numbers.correlation.value is None
    assert numbers.correlation.no_interval == "the figure is not defined"
