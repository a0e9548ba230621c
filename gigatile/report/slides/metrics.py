"""Read the metrics of slides and check that they fit the scored slides."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gigatile.errors import UserError
from gigatile.evaluation.metrics_file import Level, SlideMetrics
from gigatile.json_models import read_model
from gigatile.report.slides.inputs import ScoredSlide, TrainedClassifier
from gigatile.report.task_report import Run
from gigatile.slides.state import SlideState

SlideRun = Run[SlideState, ScoredSlide, TrainedClassifier, SlideMetrics]


def read_metrics(
    path: Path, model: TrainedClassifier, scored: Sequence[ScoredSlide]
) -> SlideMetrics:
    """Read evaluation/metrics.json.

    Raises:
        UserError: it is damaged, its classes are not the model's, or its confusion matrices do not
            count the predicted classes of the scored slides.
    """
    metrics, classes = read_model(SlideMetrics, path), model.classes
    if metrics.classes != classes:
        raise UserError(f"{path}: classes are {metrics.classes}, the model's are {classes}")
    for name, prediction in (("mean_call", "call_mean"), ("vote_call", "call_vote")):
        matrix = getattr(metrics.slide.confusion, name)
        if matrix is None:
            continue
        counts = Counter((row.label, getattr(row, prediction)) for row in scored)
        counted = [[counts[label, predicted] for predicted in classes] for label in classes]
        if counted != matrix:
            raise UserError(
                f"{path}: its confusion matrix of slides ({name}) differs from the counts of "
                "slides.tsv; one of the two is out of date, run the evaluation again"
            )
    return metrics


def count_labels(level: Level, classes: Sequence[str]) -> dict[str, int]:
    """Return the number of slides (or patients) with each label."""
    return {name: sum(row) for name, row in zip(classes, level.confusion.mean_call, strict=True)}


def why_undefined(
    level: Level, classes: Sequence[str], unit: str, name: str | None = None, kind: str = "test"
) -> str:
    """Return why a metric is not defined, for one class or (name None) for all classes.

    Args:
        unit: what is counted, "slide" or "patient".
        kind: of the cohort, "test" or "new".
    """
    counts = count_labels(level, classes)
    total = sum(counts.values())
    if not total:
        return f"no {kind} {unit} was scored"
    absent = [label for label in classes if not counts[label] and name in (None, label)]
    if absent:
        listed = ", ".join(f"“{label}”" for label in absent)
        return f"no {kind} {unit} of class {listed}"
    if name is not None and counts[name] == total:
        return f"every {kind} {unit} is of class “{name}”"
    return f"too few {kind} {unit}s"
