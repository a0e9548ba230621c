"""The metrics of slides, evaluation/metrics.json, and why a metric is not defined."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pydantic import model_validator

from gigatile.errors import UserError
from gigatile.json_models import JsonModel, read_model
from gigatile.report.metrics import Interval, Metrics
from gigatile.report.slides.inputs import ScoredSlide, SlideModel
from gigatile.report.task_report import Run
from gigatile.slides.state import SlideState


class ByClass(JsonModel):
    """A metric for each class and their mean."""

    macro: Interval
    per_class: dict[str, Interval]


class Accuracy(JsonModel):
    """The share of correct predictions, by the mean score and by majority vote."""

    mean_call: Interval
    vote_call: Interval


class Confusion(JsonModel):
    """Counts; rows: labels, columns: predicted classes, both in the order of the classes."""

    mean_call: list[list[int]]
    vote_call: list[list[int]]


class Band(JsonModel):
    """The interval of the true positive rate at each of these false positive rates."""

    fpr: list[float]
    low: list[float]
    high: list[float]


class Curve(JsonModel):
    """A ROC curve; the band is None with too few patients."""

    fpr: list[float]
    tpr: list[float]
    band: Band | None = None


class Level(JsonModel):
    """All metrics by slide, or by patient."""

    n: int
    patients: int
    accuracy: Accuracy
    roc_auc: ByClass
    average_precision: ByClass
    confusion: Confusion
    roc_curve: dict[str, Curve | None]


class SlideMetrics(Metrics):
    """evaluation/metrics.json."""

    classes: list[str]
    slide: Level
    patient: Level

    @model_validator(mode="after")
    def _complete(self) -> "SlideMetrics":
        size = len(self.classes)
        for name, level in (("slide", self.slide), ("patient", self.patient)):
            for metric in (level.roc_auc, level.average_precision):
                if missing := [c for c in self.classes if c not in metric.per_class]:
                    raise ValueError(f"{name}: no metrics of class {missing[0]!r}")
            for counts in (level.confusion.mean_call, level.confusion.vote_call):
                if len(counts) != size or any(len(row) != size for row in counts):
                    raise ValueError(f"{name}: a confusion matrix is not {size} × {size}")
        return self


SlideRun = Run[SlideState, ScoredSlide, SlideModel, SlideMetrics]


def read_metrics(path: Path, model: SlideModel, scored: Sequence[ScoredSlide]) -> SlideMetrics:
    """Read evaluation/metrics.json.

    Raises:
        UserError: it is damaged, its classes are not the model's, or its confusion matrices do not
            count the predicted classes of the scored slides.
    """
    metrics, classes = read_model(SlideMetrics, path), model.classes
    if metrics.classes != classes:
        raise UserError(f"{path}: classes are {metrics.classes}, the model's are {classes}")
    for name, prediction in (("mean_call", "call_mean"), ("vote_call", "call_vote")):
        counts = Counter((row.label, getattr(row, prediction)) for row in scored)
        counted = [[counts[label, predicted] for predicted in classes] for label in classes]
        if counted != getattr(metrics.slide.confusion, name):
            raise UserError(
                f"{path}: its confusion matrix of slides ({name}) differs from the counts of "
                "slides.tsv; one of the two is out of date, run the evaluation again"
            )
    return metrics


def count_labels(level: Level, classes: Sequence[str]) -> dict[str, int]:
    """Return the number of slides (or patients) with each label."""
    return {name: sum(row) for name, row in zip(classes, level.confusion.mean_call, strict=True)}


def why_undefined(level: Level, classes: Sequence[str], unit: str, name: str | None = None) -> str:
    """Return why a metric is not defined, for one class or (name None) for all classes.

    Args:
        unit: what is counted, "slide" or "patient".
    """
    counts = count_labels(level, classes)
    total = sum(counts.values())
    if not total:
        return f"no test {unit} was scored"
    absent = [label for label in classes if not counts[label] and name in (None, label)]
    if absent:
        listed = ", ".join(f"“{label}”" for label in absent)
        return f"no test {unit} of class {listed}"
    if name is not None and counts[name] == total:
        return f"every test {unit} is of class “{name}”"
    return f"too few test {unit}s"
