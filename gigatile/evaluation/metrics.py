"""Figures of a test cohort, each with a 95 % bootstrap interval over patients.

The figures are scikit-learn's own. Patients are the unit of resampling, since slides of one
patient are not independent (Field and Welsh 2007, https://doi.org/10.1111/j.1467-9868.2007.00593.x).
"""

from collections.abc import Callable, Iterator, Sequence
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

from gigatile.records.shuffle import key64
from gigatile.settings import EvaluationSettings

SCHEMA = 1
INTERVAL = (2.5, 97.5)
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
    calls = {
        name: cases[column].map(numbers).to_numpy()
        for name, column in (("mean_call", "call_mean"), ("vote_call", "call_vote"))
    }

    def figures(chosen: np.ndarray) -> dict[str, float]:
        return _figures(truth[chosen], scores[chosen], {k: v[chosen] for k, v in calls.items()})

    whole = figures(np.arange(len(cases)))
    resampled: dict[str, list[float]] = {name: [] for name in whole}
    bands: dict[str, list[np.ndarray]] = {label: [] for label in classes}
    for chosen in _resamples(cases["patient"].to_numpy(), settings):
        for name, value in figures(chosen).items():
            resampled[name].append(value)
        for number, label in enumerate(classes):
            positive = truth[chosen] == number
            if 0 < positive.sum() < len(positive):
                fpr, tpr, _ = roc_curve(positive, scores[chosen, number])
                bands[label].append(np.interp(BAND, fpr, tpr))

    intervals = {name: _interval(whole[name], resampled[name]) for name in whole}

    def family(name: str) -> dict[str, Any]:
        per_class = {label: intervals[f"{name}/{number}"] for number, label in enumerate(classes)}
        return {"macro": intervals[f"{name}/macro"], "per_class": per_class}

    return {
        "n": len(cases),
        "patients": int(cases["patient"].nunique()),
        "accuracy": {name: intervals[f"accuracy/{name}"] for name in calls},
        "roc_auc": family("roc_auc"),
        "average_precision": family("average_precision"),
        "confusion": {
            name: confusion_matrix(truth, called, labels=range(len(classes))).tolist()
            for name, called in calls.items()
        },
        "roc_curve": {
            label: _curve(truth == number, scores[:, number], bands[label])
            for number, label in enumerate(classes)
        },
    }


def _figures(
    truth: np.ndarray, scores: np.ndarray, calls: dict[str, np.ndarray]
) -> dict[str, float]:
    """Return every figure of some cases; NaN where it is not defined."""
    found = {f"accuracy/{name}": accuracy_score(truth, called) for name, called in calls.items()}
    families: dict[str, Callable[..., float]] = {
        "roc_auc": roc_auc_score,
        "average_precision": average_precision_score,
    }
    for name, measure in families.items():
        values = []
        for number in range(scores.shape[1]):
            positive = truth == number
            # Without a case of the class, or with nothing else, there is nothing to rank.
            defined = 0 < positive.sum() < len(positive)
            values.append(measure(positive, scores[:, number]) if defined else np.nan)
            found[f"{name}/{number}"] = float(values[-1])
        # One-vs-rest and unweighted: the mean over all classes, undefined if one of them is.
        found[f"{name}/macro"] = float(np.mean(values))
    return found


def _resamples(patients: np.ndarray, settings: EvaluationSettings) -> Iterator[np.ndarray]:
    """Yield the cases of each bootstrap resample: patients drawn with replacement."""
    cases_of = [np.flatnonzero(patients == patient) for patient in np.unique(patients)]
    random = np.random.Generator(np.random.Philox(key64("bootstrap", settings.seed)))
    for _ in range(settings.resamples):
        drawn = random.integers(len(cases_of), size=len(cases_of))
        yield np.concatenate([cases_of[number] for number in drawn])


def _interval(value: float, resampled: list[float]) -> dict[str, float | int | None]:
    """Return a figure and its interval; None where it is not defined, never a NaN."""
    defined = [one for one in resampled if not np.isnan(one)]
    found: dict[str, float | int | None] = dict.fromkeys(("value", "low", "high"))
    if not np.isnan(value) and defined:
        low, high = np.percentile(defined, INTERVAL)
        found = {"value": _plain(value), "low": _plain(low), "high": _plain(high)}
    return found | {"resamples": len(defined)}


def _curve(
    positive: np.ndarray, scores: np.ndarray, band: list[np.ndarray]
) -> dict[str, Any] | None:
    if not 0 < positive.sum() < len(positive):
        return None
    fpr, tpr, _ = roc_curve(positive, scores)
    # Where no resample had both sides, nothing is known: the band is everything.
    low, high = np.percentile(band, INTERVAL, axis=0) if band else (BAND * 0, BAND * 0 + 1)
    around = {"fpr": BAND, "low": low, "high": high}
    return {
        "fpr": [_plain(value) for value in fpr],
        "tpr": [_plain(value) for value in tpr],
        "band": {name: [_plain(value) for value in values] for name, values in around.items()},
    }


def _plain(value: float) -> float:
    """Round for JSON: six decimals are beyond what a cohort can tell and the same everywhere."""
    return round(float(value), 6)
