"""The sections with the predicted outcomes, and the top of the report."""

from pathlib import Path
from typing import Any

from gigatile.report.outcomes import figures
from gigatile.report.outcomes.inputs import OutcomeRun
from gigatile.report.task_report import Content, Section

TEMPLATES = Path(__file__).parent / "templates"


def summary(run: OutcomeRun) -> dict[str, Any]:
    """Return the values of the top of the first page."""
    return {"metrics": run.metrics}


def _result(run: OutcomeRun) -> Content:
    metrics = run.metrics
    values: dict[str, Any] = {"metrics": metrics, "survival": None, "scatter": None}
    if metrics.survival:
        values["survival"] = figures.survival(metrics.survival)
    elif run.scored:
        values["scatter"] = figures.scatter(run.scored)
    return Content(values)


def _slides(run: OutcomeRun) -> Content:
    return Content({"scored": run.scored, "kind": run.metrics.kind})


RESULT = Section("result", "Predicted outcomes", TEMPLATES / "result.html.j2", _result, "Result")
TEST_SLIDES = Section("slides", "Test slides", TEMPLATES / "outcome_slides.html.j2", _slides)
