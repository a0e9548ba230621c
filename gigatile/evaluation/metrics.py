"""Figures of a test cohort, each with a 95 % interval over patients (`intervals`).

The figures are scikit-learn's own; those with random weights are equal to it and faster.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    confusion_matrix,
    roc_auc_score,
    roc_curve,
)

from gigatile.evaluation import ranking
from gigatile.evaluation.intervals import (
    ENDS,
    LEAST_PATIENTS,
    Draws,
    Weights,
    describe,
    draw_mean,
    plain,
    too_few_patients,
    with_interval,
)
from gigatile.settings.evaluate import EvaluationSettings

SCHEMA = 2
# False-positive rates at which the band around a ROC curve is given.
BAND = np.linspace(0, 1, 101)


def evaluate(
    calls: pd.DataFrame, classes: Sequence[str], settings: EvaluationSettings
) -> dict[str, Any]:
    """Compute every figure at slide and at patient level.

    Args:
        calls: a row per slide: slide, patient, label, p_<class>…, call_mean, call_vote.
        classes: the classes in the order of the scores.
        settings: number of draws for the intervals and their seed.
    """
    levels = {"slide": calls, "patient": by_patient(calls, classes)}
    described = {"schema": SCHEMA, "classes": list(classes), **describe(settings)}
    return described | {level: _level(cases, classes, settings) for level, cases in levels.items()}


def by_patient(calls: pd.DataFrame, classes: Sequence[str]) -> pd.DataFrame:
    """Join the slides of a patient that have one label into one case.

    A patient with a tumour slide and a normal slide is two cases, since no single call could be
    right for both. Scores are the means over slides; the vote is the class that most slides vote
    for, of equals the one with the higher mean.
    """
    names = [f"p_{label}" for label in classes]
    rows = []
    for (patient, label), slides in calls.groupby(["patient", "label"], sort=True):
        mean = slides[names].to_numpy(np.float64).mean(axis=0)
        votes = [(slides["call_vote"] == label).sum() for label in classes]
        winner = max(range(len(classes)), key=lambda c: (votes[c], mean[c], -c))
        rows.append([patient, label, *mean, classes[int(mean.argmax())], classes[winner]])
    return pd.DataFrame(rows, columns=["patient", "label", *names, "call_mean", "call_vote"])


def _level(
    cases: pd.DataFrame, classes: Sequence[str], settings: EvaluationSettings
) -> dict[str, Any]:
    scores = cases[[f"p_{label}" for label in classes]].to_numpy(np.float64)
    numbers = {label: number for number, label in enumerate(classes)}
    truth = cases["label"].map(numbers).to_numpy()
    weights = Weights(cases["patient"].to_numpy(), settings)
    patients = int(cases["patient"].nunique())

    accuracy, confusion = {}, {}
    for name, column in (("mean_call", "call_mean"), ("vote_call", "call_vote")):
        called = cases[column].map(numbers).to_numpy()
        draws = draw_mean((truth == called).astype(np.float64), weights, 0, 1)
        accuracy[name] = with_interval(
            accuracy_score(truth, called), draws, patients, too_few_patients({"": patients})
        )
        matrix = confusion_matrix(truth, called, labels=range(len(classes)))
        confusion[name] = matrix.tolist()

    ranked = [
        _rank(truth == number, scores[:, number], weights, number, len(classes))
        for number in range(len(classes))
    ]
    return {
        "n": len(cases),
        "patients": patients,
        "accuracy": accuracy,
        "roc_auc": _family("roc_auc", ranked, classes),
        "average_precision": _family("average_precision", ranked, classes),
        "confusion": confusion,
        "roc_curve": {label: each.curve for label, each in zip(classes, ranked, strict=True)},
    }


@dataclass(frozen=True)
class ClassDraws:
    """How well a class is ranked above the rest, in every draw.

    Attributes:
        worst, best: `ranking.curve_counts` with half an unseen patient of each class, ranked as
            badly, or as well, as can be.
    """

    worst: tuple[np.ndarray, np.ndarray]
    best: tuple[np.ndarray, np.ndarray]

    @property
    def roc_auc(self) -> Draws:
        """The area under the ROC curve."""
        return Draws(ranking.roc_auc(*self.worst), ranking.roc_auc(*self.best))

    @property
    def average_precision(self) -> Draws:
        """The average precision."""
        return Draws(ranking.average_precision(*self.worst), ranking.average_precision(*self.best))

    def band(self, rates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the true-positive rate's interval at each false-positive rate."""
        low, high = (
            np.quantile(ranking.roc_curve_at(rates, *counts), end, axis=0)
            for counts, end in zip((self.worst, self.best), ENDS, strict=True)
        )
        return low, high


def draw_class(
    positive: np.ndarray, scores: np.ndarray, weights: Weights, number: int, classes: int
) -> ClassDraws:
    """Rank the cases by their scores of one class, in every draw.

    Args:
        positive: (n,) bool, the cases of the class; some, and not all.
        scores: (n,) the class's scores.
        weights: of the cases.
        number: of the class, from 0.
        classes: how many there are.
    """
    halves = weights.halves(classes)
    of_class = halves[:, number] * weights.most_cases(positive)
    others = np.delete(halves, number, axis=1).sum(axis=1)
    of_rest = others * weights.most_cases(~positive)
    worst, best = (
        ranking.curve_counts(
            *ranking.add_unseen(positive, scores, weights.cases, of_class, of_rest, best)
        )
        for best in (False, True)
    )
    return ClassDraws(worst, best)


@dataclass(frozen=True)
class _Ranked:
    """How well a class is ranked above the rest.

    Attributes:
        patients: how many have a case of the class.
        others: how many have a case of the rest.
        values: roc_auc and average_precision; NaN where they are not defined.
        draws: of both, if both are defined.
        curve: the ROC curve with its band; None where it is not defined.
    """

    patients: int
    others: int
    values: dict[str, float]
    draws: dict[str, Draws]
    curve: dict[str, Any] | None


def _rank(
    positive: np.ndarray, scores: np.ndarray, weights: Weights, number: int, classes: int
) -> _Ranked:
    patients, others = weights.patients(positive), weights.patients(~positive)
    # Without a case of the class, or with nothing else, there is nothing to rank.
    if not patients or not others:
        nothing = {"roc_auc": math.nan, "average_precision": math.nan}
        return _Ranked(patients, others, nothing, {}, None)
    values = {
        "roc_auc": roc_auc_score(positive, scores),
        "average_precision": average_precision_score(positive, scores),
    }
    fpr, tpr, _ = roc_curve(positive, scores)
    curve: dict[str, Any] = {"fpr": _listed(fpr), "tpr": _listed(tpr), "band": None}
    drawn = draw_class(positive, scores, weights, number, classes)
    if min(patients, others) >= LEAST_PATIENTS:
        low, high = drawn.band(BAND)
        curve["band"] = {"fpr": _listed(BAND), "low": _listed(low), "high": _listed(high)}
    draws = {"roc_auc": drawn.roc_auc, "average_precision": drawn.average_precision}
    return _Ranked(patients, others, values, draws, curve)


def _family(name: str, ranked: Sequence[_Ranked], classes: Sequence[str]) -> dict[str, Any]:
    """Return a figure of each class against the rest, and the unweighted mean of all classes.

    The mean is not defined if the figure of one class is not.
    """
    per_class = {}
    for label, each in zip(classes, ranked, strict=True):
        groups = {f"of class {label}": each.patients, "of the other classes": each.others}
        per_class[label] = with_interval(
            each.values[name],
            each.draws.get(name),
            min(each.patients, each.others),
            too_few_patients(groups),
        )
    value = float(np.mean([each.values[name] for each in ranked]))
    draws = None if math.isnan(value) else Draws.mean([each.draws[name] for each in ranked])
    groups = {
        f"of class {label}": each.patients for label, each in zip(classes, ranked, strict=True)
    }
    macro = with_interval(value, draws, min(groups.values()), too_few_patients(groups))
    return {"macro": macro, "per_class": per_class}


def _listed(values: np.ndarray) -> list[float]:
    return [plain(value) for value in values]
