"""Compares predicted numbers or risks on the same test patients: paired differences and tests.

- **Concordance**: the difference has a 95 % interval by the Bayesian bootstrap of `intervals`, with
  the same weight of a patient for both models; the unseen patient agrees with every patient for one
  model and disagrees for the other, with half its weight (see `comparison`). It is tested with the
  variance of the jackknife over patients (Miller 1974, https://doi.org/10.1093/biomet/61.1.1). In
  simulations, 1 to 6 % of equal models differ with p < 0.05, and the intervals cover the true
  difference in 97 % or more, from 6 to 80 patients.
- **Mean absolute error** of numbers, by slide: the unseen patient has the largest difference of the
  errors. It is tested by Wilcoxon's signed-rank test of the mean differences of the patients.
"""

import math

import numpy as np
import pandas as pd
from scipy import stats

from gigatile.cohort.outcomes import parse_outcome
from gigatile.evaluation.comparison import PairedFigure, paired
from gigatile.evaluation.intervals import (
    Draws,
    Weights,
    draw_mean,
    too_few_patients,
    with_interval,
)
from gigatile.evaluation.outcomes import by_patient
from gigatile.evaluation.survival import weighted_pairs
from gigatile.settings.evaluate import EvaluationSettings

# Patients that are left out at the same time; it bounds the memory.
_AT_ONCE = 512
JACKKNIFE, WILCOXON = "jackknife", "Wilcoxon"


def compare_outcomes(
    first: pd.DataFrame, second: pd.DataFrame, settings: EvaluationSettings
) -> list[PairedFigure]:
    """Compare two models.

    Args:
        first, second: the predictions of the same slides, in any order: slide, patient, label and
            predicted.
        settings: number of draws for the intervals, and their seed.

    Returns:
        The concordance, unless it is not defined; of numbers also the mean absolute error.

    Raises:
        ValueError: the tables have other slides, patients or labels.
    """
    tables = paired(first, second)
    of_numbers = parse_outcome(tables[0]["label"].iloc[0]).event is None
    cases = tables if of_numbers else [by_patient(table) for table in tables]
    outcomes = [parse_outcome(label) for label in cases[0]["label"]]
    values = np.array([outcome.value for outcome in outcomes])
    events = np.array([outcome.event is not False for outcome in outcomes])
    predicted = [table["predicted"].to_numpy(np.float64) for table in cases]
    patients = cases[0]["patient"].to_numpy()
    weights = Weights(patients, settings)
    risks = [-some if of_numbers else some for some in predicted]
    figures = [_concordance(risks, values, events, patients, weights)]
    if of_numbers:
        figures.append(_errors([np.abs(some - values) for some in predicted], patients, weights))
    return [figure for figure in figures if figure is not None]


def _concordance(
    risks: list[np.ndarray],
    values: np.ndarray,
    events: np.ndarray,
    patients: np.ndarray,
    weights: Weights,
) -> PairedFigure | None:
    everyone = np.ones(len(values), bool)
    pairs = [weighted_pairs(some, values, events, everyone[None].astype(float)) for some in risks]
    if not pairs[0][1][0]:
        return None
    first, second = (float(agreeing[0] / comparable[0]) for agreeing, comparable in pairs)
    (of_first, comparable), (of_second, _) = (
        weighted_pairs(some, values, events, weights.cases) for some in risks
    )
    unseen = weights.unseen * weights.most_cases(everyone) * weights.cases.sum(axis=1) / 2
    draws = Draws(
        (of_first - of_second - unseen) / (comparable + unseen),
        (of_first - of_second + unseen) / (comparable + unseen),
    )
    count = weights.patients(everyone)
    difference = with_interval(first - second, draws, count, too_few_patients({"": count}))
    variance = _jackknife_variance(risks, values, events, patients)
    p = None
    if variance:
        p = float(2 * stats.norm.sf(abs(first - second) / math.sqrt(variance)))
    elif first == second:
        p = 1.0
    return PairedFigure("concordance", first, second, difference, JACKKNIFE, p)


def _jackknife_variance(
    risks: list[np.ndarray], values: np.ndarray, events: np.ndarray, patients: np.ndarray
) -> float | None:
    """Return the variance of the difference of two concordances; None: it is not defined."""
    names, of_patient = np.unique(patients, return_inverse=True)
    parts = []
    for begin in range(0, len(names), _AT_ONCE):
        left_out = np.arange(begin, min(begin + _AT_ONCE, len(names)))
        weights = (left_out[:, None] != of_patient).astype(np.float64)
        (of_first, comparable), (of_second, _) = (
            weighted_pairs(some, values, events, weights) for some in risks
        )
        if not comparable.all():
            return None
        parts.append((of_first - of_second) / comparable)
    differences = np.concatenate(parts)
    squares = float(((differences - differences.mean()) ** 2).sum())
    return (len(names) - 1) / len(names) * squares


def _errors(errors: list[np.ndarray], patients: np.ndarray, weights: Weights) -> PairedFigure:
    first, second = errors
    difference = first - second
    most = float(np.abs(difference).max())
    draws = draw_mean(difference, weights, -most, most)
    count = weights.patients(np.ones(len(first), bool))
    values = float(first.mean()), float(second.mean())
    of_patients = pd.Series(difference).groupby(patients).mean().to_numpy()
    p = float(stats.wilcoxon(of_patients).pvalue) if of_patients.any() else 1.0
    return PairedFigure(
        "mean absolute error",
        *values,
        with_interval(values[0] - values[1], draws, count, too_few_patients({"": count})),
        WILCOXON,
        p,
    )
