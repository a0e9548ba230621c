"""The sections with the predicted outcomes, and the top of the report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gigatile.evaluation.outcomes import OutcomeMetrics
from gigatile.report.outcomes import figures
from gigatile.report.outcomes.inputs import OutcomeRun, PredictedSlide
from gigatile.report.task_report import Content, Section

TEMPLATES = Path(__file__).parent / "templates"


def summary(run: OutcomeRun) -> dict[str, Any]:
    """Return the values of the top of the first page."""
    return {"metrics": run.metrics}


def result_content(
    metrics: OutcomeMetrics, scored: Sequence[PredictedSlide], which: str
) -> Content:
    """Return the figures and the plot of slides.

    Args:
        metrics: the figures.
        scored: the slides, with their outcomes.
        which: of them, `test` or `new`.
    """
    values: dict[str, Any] = {"metrics": metrics, "survival": None, "scatter": None, "which": which}
    if metrics.survival:
        values["survival"] = figures.survival(metrics.survival)
    elif scored:
        values["scatter"] = figures.scatter(scored)
    return Content(values)


def _result(run: OutcomeRun) -> Content:
    return result_content(run.metrics, run.scored, "test")


def _slides(run: OutcomeRun) -> Content:
    return Content({"scored": run.scored, "kind": run.metrics.kind})


RESULT = Section("result", "Predicted outcomes", TEMPLATES / "result.html.j2", _result, "Result")
TEST_SLIDES = Section("slides", "Test slides", TEMPLATES / "outcome_slides.html.j2", _slides)
