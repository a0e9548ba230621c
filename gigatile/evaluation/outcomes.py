"""Figures of predicted numbers and risks, with 95 % intervals over patients (see `intervals`).

The concordance of numbers is that of pairs with different values: the share of the pairs of which
the larger number was predicted larger. Its unseen patient agrees or disagrees with every patient.
Errors of numbers have no bound, so the unseen patient's are 0, or the largest observed. For the
share of the variance, the number of an unseen patient with the largest error is the mean, and that
of one without an error is the extreme; for the correlation, number and prediction are extremes.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import pandas as pd

from gigatile.cohort.outcomes import parse_outcome
from gigatile.evaluation.intervals import (
    Draws,
    Weights,
    describe_intervals,
    draw_mean,
    rounded,
    too_few_patients,
    with_interval,
)
from gigatile.evaluation.metrics_file import Interval, Intervals, Metrics
from gigatile.evaluation.survival import (
    CumulativeHazard,
    SurvivalCurve,
    concordance,
    logrank_p,
    survival_curve,
    weighted_pairs,
)
from gigatile.json_models import Written
from gigatile.settings.evaluate import EvaluationSettings


class NumberFigures(Written):
    """Figures of predicted numbers, by slide.

    Attributes:
        mean_absolute_error, root_mean_squared_error: in units of the number.
        r_squared: share of the variance that is predicted; below 0: worse than the mean of the test
            slides. Not defined if all values are equal.
        correlation: Pearson's; not defined if values or predictions are all equal.
    """

    mean_absolute_error: Interval
    root_mean_squared_error: Interval
    r_squared: Interval
    correlation: Interval


class RiskGroup(Written):
    """The test patients with a low or a high risk.

    Attributes:
        patients, events: their number, and that of the observed events.
        times, survival, low, high: the Kaplan-Meier curve at the times of events, with 95 %
            intervals.
        censored: times at which the observation of a patient ended.
    """

    patients: int
    events: int
    times: list[float]
    survival: list[float]
    low: list[float]
    high: list[float]
    censored: list[float]


class SurvivalFigures(Written):
    """Figures of predicted risks, by patient.

    Attributes:
        events: number of observed events.
        threshold: the median risk of the patients of the validation split, which divides the test
            patients into two groups.
        low_risk, high_risk: the groups.
        logrank_p: of equal survival in both groups; None: the test is not defined.
        events_ratio: observed events divided by those that the model expects in the time that each
            patient was observed; 1: as many. None: several models predicted the risks.
    """

    events: int
    threshold: float
    low_risk: RiskGroup
    high_risk: RiskGroup
    logrank_p: float | None
    events_ratio: Interval | None = None


class OutcomeMetrics(Metrics):
    """The content of metrics.json.

    Attributes:
        kind: `number` or `survival`.
        n, patients: number of scored slides, and of their patients.
        concordance: of numbers by slide, of risks by patient.
        numbers, survival: the figures of the kind.
    """

    kind: Literal["number", "survival"]
    intervals: Intervals
    n: int
    patients: int
    concordance: Interval
    numbers: NumberFigures | None
    survival: SurvivalFigures | None
    inputs: dict[str, str]


def evaluate_outcomes(
    slides: pd.DataFrame,
    threshold: float | None,
    settings: EvaluationSettings,
    inputs: Mapping[str, str],
    hazard: CumulativeHazard | None = None,
) -> OutcomeMetrics:
    """Compute all figures.

    Args:
        slides: a row per slide: slide, patient, label and predicted; a higher risk means an earlier
            event.
        threshold: of risks; see `median_risk`. None: of numbers.
        settings: number of draws for the intervals, and their seed.
        inputs: the SHA-256 of the files of the predictions, by name.
        hazard: of a patient with the risk 0, for risks of one model.
    """
    outcomes = [parse_outcome(label) for label in slides["label"]]
    of_numbers = all(outcome.event is None for outcome in outcomes)
    cases = slides if of_numbers else by_patient(slides)
    outcomes = [parse_outcome(label) for label in cases["label"]]
    values = np.array([outcome.value for outcome in outcomes])
    events = np.array([outcome.event is not False for outcome in outcomes])
    predicted = cases["predicted"].to_numpy(np.float64)
    weights = Weights(cases["patient"].to_numpy(), settings)
    # Larger numbers are predicted larger, and earlier events have higher risks.
    risks = -predicted if of_numbers else predicted
    return OutcomeMetrics(
        kind="number" if of_numbers else "survival",
        intervals=describe_intervals(settings),
        n=len(slides),
        patients=int(slides["patient"].nunique()),
        concordance=_concordance(risks, values, events, weights),
        numbers=_numbers(values, predicted, weights) if of_numbers else None,
        survival=(
            None
            if threshold is None
            else _survival(predicted, values, events, threshold).model_copy(
                update={"events_ratio": _events_ratio(predicted, values, events, hazard, weights)}
            )
        ),
        inputs=dict(inputs),
    )


def median_risk(valid: pd.DataFrame) -> float | None:
    """Return the median risk of the patients of the validation split; None: of numbers.

    Args:
        valid: a row per slide; see `evaluate_outcomes`.
    """
    if parse_outcome(valid["label"].iloc[0]).event is None:
        return None
    return rounded(float(np.median(by_patient(valid)["predicted"])))


def by_patient(slides: pd.DataFrame) -> pd.DataFrame:
    """Return a row per patient, with the mean prediction of the slides."""
    return slides.groupby("patient", sort=True, as_index=False).agg(
        label=("label", "first"), predicted=("predicted", "mean")
    )


def _numbers(values: np.ndarray, predicted: np.ndarray, weights: Weights) -> NumberFigures:
    errors = np.abs(predicted - values)
    squares = _mean(errors**2, weights)
    return NumberFigures(
        mean_absolute_error=_mean(errors, weights),
        root_mean_squared_error=squares.model_copy(
            update={
                name: None if value is None else rounded(np.sqrt(value))
                for name in ("value", "low", "high")
                for value in [getattr(squares, name)]
            }
        ),
        r_squared=_r_squared(values, predicted, weights),
        correlation=_correlation(values, predicted, weights),
    )


def _r_squared(values: np.ndarray, predicted: np.ndarray, weights: Weights) -> Interval:
    everyone = np.ones(len(values), bool)
    patients, unseen = weights.patients(everyone), weights.unseen * weights.most_cases(everyone)
    centred, squares = values - values.mean(), (predicted - values) ** 2
    total = float((centred**2).sum())
    if not total:
        return with_interval(float("nan"), None, patients)
    of_values = _Moments(centred, centred, weights)
    error, variance = _sums(squares, weights), of_values.covariance() * of_values.weight
    furthest = np.maximum(centred.max() - of_values.mean, of_values.mean - centred.min()) ** 2
    draws = Draws(
        1 - (error + unseen * squares.max()) / variance,
        1 - error / (variance + unseen * furthest),
    )
    value = 1 - float(squares.sum()) / total
    return with_interval(value, draws, patients, too_few_patients({"": patients}))


def _correlation(values: np.ndarray, predicted: np.ndarray, weights: Weights) -> Interval:
    everyone = np.ones(len(values), bool)
    patients, unseen = weights.patients(everyone), weights.unseen * weights.most_cases(everyone)
    if not (values.std() and predicted.std()):
        return with_interval(float("nan"), None, patients)
    x, y = values - values.mean(), predicted - predicted.mean()
    of_x, of_y = _Moments(x, x, weights), _Moments(y, y, weights)
    of_both = _Moments(x, y, weights)

    def with_unseen(at_x: float, at_y: float) -> np.ndarray:
        return of_both.correlation(of_x, of_y, unseen, at_x, at_y)

    draws = Draws(
        np.minimum(with_unseen(x.max(), y.min()), with_unseen(x.min(), y.max())),
        np.maximum(with_unseen(x.max(), y.max()), with_unseen(x.min(), y.min())),
    )
    value = float(np.corrcoef(values, predicted)[0, 1])
    return with_interval(value, draws, patients, too_few_patients({"": patients}))


def _sums(values: np.ndarray, weights: Weights) -> np.ndarray:
    """Return the weighted sum of values in each draw: (resamples,)."""
    # Sums, because the rounding of a matrix product depends on the number of threads.
    total: np.ndarray = (weights.cases * values).sum(axis=1)
    return total


class _Moments:
    """The weighted sums of two centred figures in each draw.

    Attributes:
        weight, mean: (resamples,) of all cases, and of the first figure.
    """

    def __init__(self, first: np.ndarray, second: np.ndarray, weights: Weights) -> None:
        self.weight = weights.cases.sum(axis=1)
        self._first, self._second = _sums(first, weights), _sums(second, weights)
        self._product = _sums(first * second, weights)
        self.mean = self._first / self.weight

    def covariance(
        self, unseen: np.ndarray | float = 0.0, at_first: float = 0.0, at_second: float = 0.0
    ) -> np.ndarray:
        """Return the covariance with a case of the weight `unseen` at these values."""
        weight = self.weight + unseen
        first, second = self._first + unseen * at_first, self._second + unseen * at_second
        product = self._product + unseen * at_first * at_second
        covariance: np.ndarray = product / weight - (first / weight) * (second / weight)
        return covariance

    def correlation(
        self, of_x: "_Moments", of_y: "_Moments", unseen: np.ndarray, at_x: float, at_y: float
    ) -> np.ndarray:
        """Return the correlation with an unseen case."""
        variances = of_x.covariance(unseen, at_x, at_x) * of_y.covariance(unseen, at_y, at_y)
        correlation: np.ndarray = self.covariance(unseen, at_x, at_y) / np.sqrt(variances)
        return correlation


def _mean(values: np.ndarray, weights: Weights) -> Interval:
    patients = weights.patients(np.ones(len(values), bool))
    draws = draw_mean(values, weights, 0, float(values.max()))
    return with_interval(float(values.mean()), draws, patients, too_few_patients({"": patients}))


def _concordance(
    risks: np.ndarray, times: np.ndarray, events: np.ndarray, weights: Weights
) -> Interval:
    patients = weights.patients(np.ones(len(risks), bool))
    value = concordance(risks, times, events)
    if value is None:
        return with_interval(float("nan"), None, patients)
    agreeing, of_pairs = weighted_pairs(risks, times, events, weights.cases)
    most = weights.most_cases(np.ones(len(risks), bool))
    unseen = weights.unseen * most * weights.cases.sum(axis=1)
    draws = Draws(agreeing / (of_pairs + unseen), (agreeing + unseen) / (of_pairs + unseen))
    return with_interval(value, draws, patients, too_few_patients({"": patients}))


def _survival(
    risks: np.ndarray, times: np.ndarray, events: np.ndarray, threshold: float
) -> SurvivalFigures:
    high = risks > threshold
    p = logrank_p(times, events, high)
    return SurvivalFigures(
        events=int(events.sum()),
        threshold=threshold,
        low_risk=_group(times[~high], events[~high]),
        high_risk=_group(times[high], events[high]),
        logrank_p=None if p is None else float(f"{p:.4g}"),
    )


def _events_ratio(
    risks: np.ndarray,
    times: np.ndarray,
    events: np.ndarray,
    hazard: CumulativeHazard | None,
    weights: Weights,
) -> Interval | None:
    """Return the observed events, divided by the expected ones: the sum of H(time) · exp(risk).

    If the model is right, both have the same expectation (Aalen 1978). The unseen patient has an
    event that was not expected, or none, and as many expected ones as any patient.
    """
    if hazard is None:
        return None
    everyone = np.ones(len(risks), bool)
    patients, unseen = weights.patients(everyone), weights.unseen * weights.most_cases(everyone)
    expected = hazard.at(times) * np.exp(risks)
    total = float(expected.sum())
    if not total:
        return with_interval(float("nan"), None, patients)
    observed, of_model = _sums(events.astype(np.float64), weights), _sums(expected, weights)
    draws = Draws(observed / (of_model + unseen * expected.max()), (observed + unseen) / of_model)
    value = float(events.sum()) / total
    return with_interval(value, draws, patients, too_few_patients({"": patients}))


def _group(times: np.ndarray, events: np.ndarray) -> RiskGroup:
    curve: SurvivalCurve = survival_curve(times, events)
    return RiskGroup(
        patients=len(times),
        events=int(events.sum()),
        times=[float(time) for time in curve.times],
        survival=[rounded(value) for value in curve.values],
        low=[rounded(value) for value in curve.low],
        high=[rounded(value) for value in curve.high],
        censored=[float(time) for time in curve.censored],
    )
