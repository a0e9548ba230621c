"""The section with the calibration of the scores, and the figures at operating points."""

from collections.abc import Mapping, Sequence
from typing import Any

from gigatile.errors import UserError
from gigatile.evaluation.calibration_file import Calibration, CalibrationFile, PointFigures
from gigatile.json_models import read_model
from gigatile.report.slides import figures
from gigatile.report.slides.classification import TEMPLATES
from gigatile.report.slides.metrics import SlideRun
from gigatile.report.task_report import Content, Section

FILE = "calibration.json"


def _calibration(run: SlideRun) -> Content | None:
    path = run.files["evaluation_dir"] / FILE
    if not path.exists():
        return None
    measured = read_model(CalibrationFile, path)
    if measured.classes != run.model.classes:
        raise UserError(
            f"{path}: classes are {measured.classes}, the model's are {run.model.classes}"
        )
    run.ledger.add(f"evaluation/{FILE}", path, "Calibration and operating points")
    run.ledger.check(f"evaluation/{FILE}", measured.inputs, path)
    return Content(
        {
            "panels": panels_of(measured.calibration),
            "calibration": measured.calibration,
            "points": point_rows({"test": measured.points}),
            "slides": measured.n,
            "intervals": measured.intervals,
        }
    )


def panels_of(calibration: Calibration) -> list[dict[str, Any]]:
    """Return what the figure of the reliability curve of each class needs."""
    return [
        {
            "class": name,
            "dots": figures.reliability(curve),
            "decision": figures.decision(calibration.net_benefit[name]),
            "brier": calibration.brier_per_class[name],
            "error": calibration.error_per_class[name],
        }
        for name, curve in calibration.curve.items()
    ]


def point_rows(cohorts: Mapping[str, Sequence[PointFigures]]) -> list[dict[str, Any]]:
    """Return an entry for each operating point, with the figures of each cohort.

    Args:
        cohorts: the figures by the name of the cohort, in the same order for each.
    """
    return [
        {"point": items[0].point, "cohorts": dict(zip(cohorts, items, strict=True))}
        for items in zip(*cohorts.values(), strict=True)
    ]


SECTION = Section(
    "calibration",
    "Calibration and operating points",
    TEMPLATES / "calibration.html.j2",
    _calibration,
    "Calibration",
)
