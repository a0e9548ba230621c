"""Figures of a test cohort, each with a 95 % bootstrap interval over patients.

The figures are scikit-learn's own; those of the resamples are equal to it and faster.
"""

from collections.abc import Sequence
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
from gigatile.evaluation.resampling import INTERVAL, draw_patients, interval, plain
from gigatile.settings.evaluate import EvaluationSettings

SCHEMA = 1
# False-positive rates at which the band around a ROC curve is given.
BAND = np.linspace(0, 1, 101)


def evaluate(
    calls: pd.DataFrame, classes: Sequence[str], settings: EvaluationSettings
) -> dict[str, Any]:
    """Compute every figure at slide and at patient level.

    Args:
        calls: a row per slide: slide, patient, label, p_<class>…, call_mean, call_vote.
        classes: the classes in the order of the scores.
        settings: number of resamples and their seed.
    """
    levels = {"slide": calls, "patient": by_patient(calls, classes)}
    described = {"schema": SCHEMA, "classes": list(classes), **settings.model_dump()}
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
    drawn = draw_patients(cases["patient"].to_numpy(), settings)

    accuracy, confusion = {}, {}
    for name, column in (("mean_call", "call_mean"), ("vote_call", "call_vote")):
        called = cases[column].map(numbers).to_numpy()
        resampled = drawn @ (truth == called) / drawn.sum(axis=1)
        accuracy[name] = interval(accuracy_score(truth, called), resampled)
        matrix = confusion_matrix(truth, called, labels=range(len(classes)))
        confusion[name] = matrix.tolist()

    values: dict[str, list[float]] = {"roc_auc": [], "average_precision": []}
    resamples: dict[str, list[np.ndarray]] = {"roc_auc": [], "average_precision": []}
    curves = {}
    for number, label in enumerate(classes):
        positive, score = truth == number, scores[:, number]
        # Without a case of the class, or with nothing else, there is nothing to rank.
        defined = bool(0 < positive.sum() < len(positive))
        values["roc_auc"].append(roc_auc_score(positive, score) if defined else np.nan)
        values["average_precision"].append(
            average_precision_score(positive, score) if defined else np.nan
        )
        counts = ranking.curve_counts(positive, score, drawn)
        resamples["roc_auc"].append(ranking.roc_auc(*counts))
        resamples["average_precision"].append(ranking.average_precision(*counts))
        curves[label] = _curve(positive, score, counts) if defined else None

    def family(name: str) -> dict[str, Any]:
        # One-vs-rest and unweighted: the mean over all classes, undefined if one of them is.
        macro = interval(float(np.mean(values[name])), np.mean(resamples[name], axis=0))
        each = zip(classes, values[name], resamples[name], strict=True)
        return {"macro": macro, "per_class": {label: interval(v, r) for label, v, r in each}}

    return {
        "n": len(cases),
        "patients": int(cases["patient"].nunique()),
        "accuracy": accuracy,
        "roc_auc": family("roc_auc"),
        "average_precision": family("average_precision"),
        "confusion": confusion,
        "roc_curve": curves,
    }


def _curve(
    positive: np.ndarray, scores: np.ndarray, counts: tuple[np.ndarray, np.ndarray]
) -> dict[str, Any]:
    fpr, tpr, _ = roc_curve(positive, scores)
    resampled = [
        np.interp(BAND, false / false[-1], true / true[-1])
        for false, true in zip(*counts, strict=True)
        if false[-1] and true[-1]
    ]
    # Where no resample had both sides, nothing is known: the band is everything.
    low, high = (
        np.percentile(resampled, INTERVAL, axis=0) if resampled else (BAND * 0, BAND * 0 + 1)
    )
    around = {"fpr": BAND, "low": low, "high": high}
    return {
        "fpr": [plain(value) for value in fpr],
        "tpr": [plain(value) for value in tpr],
        "band": {name: [plain(value) for value in values] for name, values in around.items()},
    }
