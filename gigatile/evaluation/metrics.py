"""Metrics of classified slides, each with a 95 % interval over patients (see `intervals`).

scikit-learn computes the metrics; `ranking` computes them faster for many sets of weights.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    describe_intervals,
    draw_mean,
    rounded,
    too_few_patients,
    with_interval,
)
from gigatile.evaluation.metrics_file import (
    Accuracy,
    Band,
    ByClass,
    Confusion,
    Curve,
    Level,
    SlideMetrics,
)
from gigatile.settings.evaluate import EvaluationSettings

# False positive rates of the band around a ROC curve.
BAND = np.linspace(0, 1, 101)


def evaluate(
    predictions: pd.DataFrame,
    classes: Sequence[str],
    settings: EvaluationSettings,
    inputs: Mapping[str, str],
) -> SlideMetrics:
    """Compute all metrics, by slide and by patient.

    Args:
        predictions: a row per slide: slide, patient, label, p_<class>…, call_mean, and call_vote if
            tiles vote.
        classes: the classes in the order of the scores.
        settings: number of draws for the intervals, and their seed.
        inputs: the SHA-256 of the files of the predictions, by name.
    """
    return SlideMetrics(
        classes=list(classes),
        intervals=describe_intervals(settings),
        slide=evaluate_level(predictions, classes, settings),
        patient=evaluate_level(merge_patients(predictions, classes), classes, settings),
        inputs=dict(inputs),
    )


def merge_patients(predictions: pd.DataFrame, classes: Sequence[str]) -> pd.DataFrame:
    """Return a row for each patient and label, merged from the slides.

    A patient with a tumour slide and a normal slide has two rows, because no single prediction is
    correct for both. Scores are means over the slides. The vote is the class with the most slides
    by vote; ties go to the higher mean.
    """
    names = [f"p_{label}" for label in classes]
    predicted = [column for column in ("call_mean", "call_vote") if column in predictions]
    rows = []
    for (patient, label), slides in predictions.groupby(["patient", "label"], sort=True):
        mean = slides[names].to_numpy(np.float64).mean(axis=0)
        calls = [classes[int(mean.argmax())]]
        if "call_vote" in predicted:
            votes = [(slides["call_vote"] == label).sum() for label in classes]
            winner = max(range(len(classes)), key=lambda c: (votes[c], mean[c], -c))
            calls.append(classes[winner])
        rows.append([patient, label, *mean, *calls])
    return pd.DataFrame(rows, columns=["patient", "label", *names, *predicted])


def evaluate_level(
    cases: pd.DataFrame, classes: Sequence[str], settings: EvaluationSettings
) -> Level:
    """Compute the metrics of slides, or of patients from `merge_patients`; see `evaluate`."""
    scores = cases[[f"p_{label}" for label in classes]].to_numpy(np.float64)
    numbers = {label: number for number, label in enumerate(classes)}
    labels = cases["label"].map(numbers).to_numpy()
    weights = Weights(cases["patient"].to_numpy(), settings)
    patients = int(cases["patient"].nunique())

    accuracy, confusion = {}, {}
    for name, column in (("mean_call", "call_mean"), ("vote_call", "call_vote")):
        if column not in cases:
            continue
        predicted = cases[column].map(numbers).to_numpy()
        draws = draw_mean((labels == predicted).astype(np.float64), weights, 0, 1)
        accuracy[name] = with_interval(
            accuracy_score(labels, predicted), draws, patients, too_few_patients({"": patients})
        )
        matrix = confusion_matrix(labels, predicted, labels=range(len(classes)))
        confusion[name] = matrix.tolist()

    rankings = [
        _rank(labels == number, scores[:, number], weights, number, len(classes))
        for number in range(len(classes))
    ]
    return Level(
        n=len(cases),
        patients=patients,
        accuracy=Accuracy(**accuracy),
        roc_auc=_by_class("roc_auc", rankings, classes),
        average_precision=_by_class("average_precision", rankings, classes),
        confusion=Confusion(**confusion),
        roc_curve={name: r.curve for name, r in zip(classes, rankings, strict=True)},
    )


@dataclass(frozen=True)
class ClassDraws:
    """The ranking of one class above the others, in all draws.

    Attributes:
        worst, best: `ranking.curve_counts` with half an unseen patient of each class, ranked as
            badly or as well as possible.
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
        """Return the interval of the true positive rate at each false positive rate."""
        low, high = (
            np.quantile(ranking.roc_curve_at(rates, *counts), end, axis=0)
            for counts, end in zip((self.worst, self.best), ENDS, strict=True)
        )
        return low, high


def draw_class(
    positive: np.ndarray, scores: np.ndarray, weights: Weights, number: int, classes: int
) -> ClassDraws:
    """Rank the cases by their scores of one class, in all draws.

    Args:
        positive: (n,) bool, the cases of the class; at least one, and not all.
        scores: (n,) the scores of the class.
        weights: the weights of the cases.
        number: the index of the class.
        classes: number of classes.
    """
    halves = weights.halves(classes)
    positive_weight = halves[:, number] * weights.most_cases(positive)
    others = np.delete(halves, number, axis=1).sum(axis=1)
    negative_weight = others * weights.most_cases(~positive)
    worst, best = (
        ranking.curve_counts(
            *ranking.add_unseen(
                positive, scores, weights.cases, positive_weight, negative_weight, best
            )
        )
        for best in (False, True)
    )
    return ClassDraws(worst, best)


@dataclass(frozen=True)
class _Ranking:
    """The ranking of one class above the others.

    Attributes:
        patients: number of patients with a case of the class.
        others: number of patients with a case of another class.
        values: roc_auc and average_precision; NaN where they are not defined.
        draws: of both, if they are defined.
        curve: the ROC curve with its band; None if it is not defined.
    """

    patients: int
    others: int
    values: dict[str, float]
    draws: dict[str, Draws]
    curve: Curve | None


def _rank(
    positive: np.ndarray, scores: np.ndarray, weights: Weights, number: int, classes: int
) -> _Ranking:
    patients, others = weights.patients(positive), weights.patients(~positive)
    # A ranking needs a case of the class and a case of another one.
    if not patients or not others:
        undefined = {"roc_auc": math.nan, "average_precision": math.nan}
        return _Ranking(patients, others, undefined, {}, None)
    values = {
        "roc_auc": roc_auc_score(positive, scores),
        "average_precision": average_precision_score(positive, scores),
    }
    fpr, tpr, _ = roc_curve(positive, scores)
    draws = draw_class(positive, scores, weights, number, classes)
    band = None
    if min(patients, others) >= LEAST_PATIENTS:
        low, high = draws.band(BAND)
        band = Band(fpr=_to_list(BAND), low=_to_list(low), high=_to_list(high))
    curve = Curve(fpr=_to_list(fpr), tpr=_to_list(tpr), band=band)
    by_metric = {"roc_auc": draws.roc_auc, "average_precision": draws.average_precision}
    return _Ranking(patients, others, values, by_metric, curve)


def _by_class(name: str, rankings: Sequence[_Ranking], classes: Sequence[str]) -> ByClass:
    """Return a metric of each class against the others, and the unweighted mean of all classes.

    The mean is not defined if the metric of a class is not defined.
    """
    per_class = {}
    for label, r in zip(classes, rankings, strict=True):
        groups = {f"of class {label}": r.patients, "of the other classes": r.others}
        per_class[label] = with_interval(
            r.values[name],
            r.draws.get(name),
            min(r.patients, r.others),
            too_few_patients(groups),
        )
    value = float(np.mean([r.values[name] for r in rankings]))
    draws = None if math.isnan(value) else Draws.mean([r.draws[name] for r in rankings])
    groups = {f"of class {label}": r.patients for label, r in zip(classes, rankings, strict=True)}
    macro = with_interval(value, draws, min(groups.values()), too_few_patients(groups))
    return ByClass(macro=macro, per_class=per_class)


def _to_list(values: np.ndarray) -> list[float]:
    return [rounded(value) for value in values]
