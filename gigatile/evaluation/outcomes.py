"""Figures of predicted numbers and risks, with 95 % intervals over patients (see `intervals`).

The concordance of numbers is that of pairs with different values: the share of the pairs of which
the larger number was predicted larger. Its unseen patient agrees or disagrees with every patient.
Errors of numbers have no bound, so the unseen patient's are 0, or the largest observed.
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
            slides. None: all values are equal.
        correlation: Pearson's; None: values or predictions are all equal.
    """

    mean_absolute_error: Interval
    root_mean_squared_error: Interval
    r_squared: float | None
    correlation: float | None


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
    """

    events: int
    threshold: float
    low_risk: RiskGroup
    high_risk: RiskGroup
    logrank_p: float | None


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
    test: pd.DataFrame,
    valid: pd.DataFrame,
    settings: EvaluationSettings,
    inputs: Mapping[str, str],
) -> OutcomeMetrics:
    """Compute all figures.

    Args:
        test: a row per slide: slide, patient, label and predicted; a higher risk means an earlier
            event.
        valid: the same of the validation split.
        settings: number of draws for the intervals, and their seed.
        inputs: the SHA-256 of the files of the predictions, by name.
    """
    outcomes = [parse_outcome(label) for label in test["label"]]
    of_numbers = all(outcome.event is None for outcome in outcomes)
    cases = test if of_numbers else by_patient(test)
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
        n=len(test),
        patients=int(test["patient"].nunique()),
        concordance=_concordance(risks, values, events, weights),
        numbers=_numbers(values, predicted, weights) if of_numbers else None,
        survival=None if of_numbers else _survival(predicted, values, events, by_patient(valid)),
        inputs=dict(inputs),
    )


def by_patient(slides: pd.DataFrame) -> pd.DataFrame:
    """Return a row per patient, with the mean prediction of the slides."""
    return slides.groupby("patient", sort=True, as_index=False).agg(
        label=("label", "first"), predicted=("predicted", "mean")
    )


def _numbers(values: np.ndarray, predicted: np.ndarray, weights: Weights) -> NumberFigures:
    errors = np.abs(predicted - values)
    squares = _mean(errors**2, weights)
    total = float(((values - values.mean()) ** 2).sum())
    varies = total > 0 and predicted.std() > 0
    return NumberFigures(
        mean_absolute_error=_mean(errors, weights),
        root_mean_squared_error=squares.model_copy(
            update={
                name: None if value is None else rounded(np.sqrt(value))
                for name in ("value", "low", "high")
                for value in [getattr(squares, name)]
            }
        ),
        r_squared=rounded(1 - float((errors**2).sum()) / total) if total else None,
        correlation=rounded(np.corrcoef(values, predicted)[0, 1]) if varies else None,
    )


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
    risks: np.ndarray, times: np.ndarray, events: np.ndarray, valid: pd.DataFrame
) -> SurvivalFigures:
    threshold = float(np.median(valid["predicted"]))
    high = risks > threshold
    p = logrank_p(times, events, high)
    return SurvivalFigures(
        events=int(events.sum()),
        threshold=rounded(threshold),
        low_risk=_group(times[~high], events[~high]),
        high_risk=_group(times[high], events[high]),
        logrank_p=None if p is None else float(f"{p:.4g}"),
    )


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
