"""The page of an external validation: new slides with labels, compared with the test split."""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from gigatile.evaluation.calibration_file import CalibrationFile, OperatingPoints
from gigatile.evaluation.external import figures_by_name
from gigatile.evaluation.external_file import ExternalMetrics
from gigatile.evaluation.metrics_file import SlideMetrics
from gigatile.files import write_text
from gigatile.json_models import read_model
from gigatile.report.external import (
    ONE_MODEL,
    Predictor,
    check_inputs,
    compared_rows,
    shared_values,
)
from gigatile.report.pages import render
from gigatile.report.sites import NOT_GIVEN
from gigatile.report.slides.calibration import panels_of, point_rows
from gigatile.report.slides.classification import (
    TEMPLATES,
    confusion_content,
    metrics_content,
    roc_content,
)
from gigatile.report.task_report import Content

# What the text at the top of the page names.
HEADLINE = "ROC AUC"


def write_external_page(
    external: Path,
    metrics: Path,
    calibration: Path,
    points: Path,
    title: str,
    out: Path,
    predictor: Predictor = ONE_MODEL,
) -> None:
    """Write the page.

    Args:
        external: external/metrics.json.
        metrics: metrics.json of the test split.
        calibration: calibration.json of the test split.
        points: operating_points.json of the model.
        title: heading of the page.
        out: file to write (.html).
        predictor: what predicted the new slides.

    Raises:
        UserError: a file is missing or damaged, or external/metrics.json was computed from other
            files.
    """
    measured = read_model(ExternalMetrics, external)
    files = {path.name: path for path in (metrics, calibration, points)}
    check_inputs(external, measured.inputs, files)
    test_metrics = read_model(SlideMetrics, metrics)
    test_calibration = read_model(CalibrationFile, calibration)
    chosen = read_model(OperatingPoints, points)
    values: dict[str, Any] = {"measured": None}
    if measured.metrics is not None and measured.calibration is not None:
        old = figures_by_name(test_metrics, test_calibration.calibration, test_calibration.points)
        new = figures_by_name(measured.metrics, measured.calibration, measured.points)
        rows = compared_rows(new, old, measured.differences)
        cohorts = {"test": test_calibration.points, "new": measured.points}
        values = {
            "measured": measured.metrics,
            "rows": rows,
            "headline": next(row for row in rows if row["name"] == HEADLINE),
            "calibration": measured.calibration,
            "test_calibration": test_calibration.calibration,
            "panels": panels_of(measured.calibration),
            "test_panels": panels_of(test_calibration.calibration),
            "points": point_rows(cohorts),
            "metrics": _section("metrics", metrics_content(measured.metrics, "new")),
            "confusion": _section("confusion", confusion_content(measured.metrics)),
            "roc": _section("roc", roc_content(measured.metrics, "new")),
        }
    page = render(
        TEMPLATES / "external_slides.html.j2",
        title=title,
        unit="slide",
        banners=predictor.banners,
        predictor=predictor,
        test=test_metrics,
        chosen=chosen,
        sites={name or NOT_GIVEN: site for name, site in measured.sites.items()},
        **shared_values(external, measured.inputs, measured.left_out, measured.compared),
        **values,
    )
    write_text(out, page)


def _section(name: str, content: Content) -> Markup:
    return Markup(render(TEMPLATES / f"{name}.html.j2", **content.values))
