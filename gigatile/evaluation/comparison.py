"""Compares classifiers on the same test patients: paired differences, tests, corrected p-values.

- **Differences** have a 95 % interval by the Bayesian bootstrap of `intervals`: each draw gives a
  patient the same weight for both models. For the lower end, the first model is wrong for the
  unseen patient and the second is correct; for the upper end vice versa. In an area under the ROC
  curve, the unseen patient counts half: with its full weight in both models, the intervals are a
  third wider and cover the true difference nearly always.
- **ROC AUC**: the test of DeLong, DeLong and Clarke-Pearson (1988, https://doi.org/10.2307/2531595).
  Patients with several cases count as clusters (Obuchowski 1997,
  https://doi.org/10.2307/2533958); with one case per patient, it is DeLong's test exactly.
- **Accuracy**: the exact test of McNemar (1947, https://doi.org/10.1007/BF02295996).
- The p-values are corrected for their number by Holm's method (1979,
  https://www.jstor.org/stable/4615733).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from gigatile.evaluation import ranking
from gigatile.evaluation.intervals import (
    Draws,
    Weights,
    draw_mean,
    too_few_patients,
    with_interval,
)
from gigatile.evaluation.metrics import draw_class, merge_patients
from gigatile.evaluation.metrics_file import Interval
from gigatile.settings.evaluate import EvaluationSettings


@dataclass(frozen=True)
class PairedFigure:
    """A figure of two models on the same patients.

    Attributes:
        name: such as `ROC AUC of luad`.
        first, second: its values.
        difference: first minus second, with its 95 % interval.
        test: of no difference, by name.
        p: its two-sided p-value; None: it is not defined.
    """

    name: str
    first: float
    second: float
    difference: Interval
    test: str
    p: float | None


def compare_models(
    first: pd.DataFrame,
    second: pd.DataFrame,
    classes: Sequence[str],
    settings: EvaluationSettings,
) -> list[PairedFigure]:
    """Compare two models by patient.

    Args:
        first, second: the predictions of the same slides, in any order: slide, patient, label,
            p_<class>… and call_mean.
        classes: the classes of both models.
        settings: number of draws for the intervals, and their seed.

    Raises:
        ValueError: the tables have other slides, patients or labels.
    """
    cases = [merge_patients(table, classes) for table in paired(first, second)]
    weights = Weights(cases[0]["patient"].to_numpy(), settings)
    return [_accuracy(cases, weights), *_areas(cases, classes, weights)]


def paired(first: pd.DataFrame, second: pd.DataFrame) -> list[pd.DataFrame]:
    """Return two tables of the same slides in the same order.

    Raises:
        ValueError: they have other slides, patients or labels.
    """
    tables = [table.sort_values("slide").reset_index(drop=True) for table in (first, second)]
    same = ["slide", "patient", "label"]
    if not tables[0][same].equals(tables[1][same]):
        raise ValueError("the models were not tested on the same slides")
    return tables


def _accuracy(cases: Sequence[pd.DataFrame], weights: Weights) -> PairedFigure:
    first, second = ((table["call_mean"] == table["label"]).to_numpy() for table in cases)
    draws = draw_mean(first.astype(np.float64) - second, weights, -1, 1)
    patients = int(cases[0]["patient"].nunique())
    values = float(first.mean()), float(second.mean())
    difference = with_interval(
        values[0] - values[1], draws, patients, too_few_patients({"": patients})
    )
    return PairedFigure("accuracy", *values, difference, "McNemar", mcnemar(first, second))


def mcnemar(first: np.ndarray, second: np.ndarray) -> float:
    """Return the two-sided p-value of the exact test; 1 if the models never differ.

    Args:
        first, second: (n,) bool, whether each model is correct.
    """
    better = int(np.count_nonzero(first & ~second))
    worse = int(np.count_nonzero(second & ~first))
    if not better + worse:
        return 1.0
    return float(stats.binomtest(better, better + worse).pvalue)


def _areas(
    cases: Sequence[pd.DataFrame], classes: Sequence[str], weights: Weights
) -> list[PairedFigure]:
    """Return the ROC AUC of each class, and the unweighted mean over the classes."""
    labels = cases[0]["label"].to_numpy()
    patients = cases[0]["patient"].to_numpy()
    per_class, parts = [], []
    for number, name in enumerate(classes):
        positive = labels == name
        if not positive.any() or positive.all():
            return []
        scores = [table[f"p_{name}"].to_numpy(np.float64) for table in cases]
        influences = [auc_influence(positive, each, patients) for each in scores]
        draws = _difference_of_areas(positive, scores, weights, number, len(classes))
        groups = {
            f"of class {name}": weights.patients(positive),
            "of the other classes": weights.patients(~positive),
        }
        parts.append((influences, draws, groups))
        per_class.append(_area(f"ROC AUC of {name}", influences, draws, groups))
    if len(classes) == 2:
        # Both classes have the same areas if the two scores of a case add up to 1.
        return per_class[:1] if _is_binary(cases[0], cases[1], classes) else per_class
    mean_influences = [_mean_influence([part[0][model] for part in parts]) for model in (0, 1)]
    mean_draws = Draws.mean([part[1] for part in parts])
    groups = {name: count for part in parts for name, count in part[2].items()}
    return [_area("ROC AUC, mean of the classes", mean_influences, mean_draws, groups), *per_class]


def _is_binary(first: pd.DataFrame, second: pd.DataFrame, classes: Sequence[str]) -> bool:
    names = [f"p_{name}" for name in classes]
    return all(np.allclose(table[names].sum(axis=1), 1, atol=1e-4) for table in (first, second))


@dataclass(frozen=True)
class Influence:
    """An area under the ROC curve, and what each patient adds to its error.

    Attributes:
        area: the area.
        patients: (n,) float64; their sum of squares is the variance of the area.
    """

    area: float
    patients: np.ndarray


def auc_influence(positive: np.ndarray, scores: np.ndarray, patients: np.ndarray) -> Influence:
    """Return the area under the ROC curve with the structural components of DeLong by patient.

    Args:
        positive: (cases,) bool, the cases of the class; at least one, and not all.
        scores: (cases,) the scores of the class.
        patients: (cases,) the patient of each case.
    """
    high, low = scores[positive], scores[~positive]
    # The fraction of the other cases that a case is ranked above; ties count half.
    above = (_below(np.sort(low), high)) / len(low)
    under = 1 - _below(np.sort(high), low) / len(high)
    area = float(above.mean())
    components = np.empty(len(scores))
    components[positive] = _scaled(above - area)
    components[~positive] = _scaled(under - area)
    _, patient_of = np.unique(patients, return_inverse=True)
    return Influence(area, np.bincount(patient_of, weights=components))


def _below(ordered: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return how many of some sorted values are below each value; equal ones count half."""
    left, right = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
    return (left + right) / 2


def _scaled(deviations: np.ndarray) -> np.ndarray:
    """Return deviations from a mean, of which the sum of squares is the variance of the mean."""
    count = len(deviations)
    return deviations / math.sqrt(count * (count - 1)) if count > 1 else deviations * math.nan


def _mean_influence(influences: Sequence[Influence]) -> Influence:
    return Influence(
        float(np.mean([each.area for each in influences])),
        np.mean([each.patients for each in influences], axis=0),
    )


def delong(first: Influence, second: Influence) -> float | None:
    """Return the two-sided p-value of no difference between two areas of the same cases.

    Returns:
        None: it is not defined, because the areas differ without variance, or a class has one case.
    """
    variance = float(((first.patients - second.patients) ** 2).sum())
    difference = first.area - second.area
    if math.isnan(variance):
        return None
    # Rounding of the ranks leaves less than this.
    if variance < 1e-20:
        return 1.0 if abs(difference) < 1e-10 else None
    return float(2 * stats.norm.sf(abs(difference) / math.sqrt(variance)))


def _area(
    name: str,
    influences: Sequence[Influence],
    draws: Draws,
    groups: dict[str, int],
) -> PairedFigure:
    first, second = influences
    difference = with_interval(
        first.area - second.area, draws, min(groups.values()), too_few_patients(groups)
    )
    p = delong(first, second)
    return PairedFigure(name, first.area, second.area, difference, "DeLong", p)


def _difference_of_areas(
    positive: np.ndarray, scores: Sequence[np.ndarray], weights: Weights, number: int, classes: int
) -> Draws:
    """Return the draws of a difference of areas under the ROC curve; see the module."""
    first, second = (
        draw_class(positive, each, weights, number, classes).roc_auc for each in scores
    )
    plain = [ranking.roc_auc(*ranking.curve_counts(positive, s, weights.cases)) for s in scores]
    without = plain[0] - plain[1]
    return Draws(
        (first.worst - second.best + without) / 2, (first.best - second.worst + without) / 2
    )


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected for their number by Holm's method; None stays None."""
    known = sorted((p, position) for position, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, position) in enumerate(known):
        highest = max(highest, min(1.0, p * (len(known) - rank)))
        corrected[position] = highest
    return corrected
