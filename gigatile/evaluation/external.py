"""External validation: the figures of a cohort that had no part in the training of a model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from gigatile.evaluation.calibration import brier_score, calibrate
from gigatile.evaluation.calibration_file import (
    Calibration,
    CalibrationFile,
    OperatingPoints,
    PointFigures,
)
from gigatile.evaluation.external_file import Difference, ExternalMetrics, LeftOut, Site
from gigatile.evaluation.external_slides import ExternalFiles, read_external
from gigatile.evaluation.metrics import evaluate, evaluate_level
from gigatile.evaluation.metrics_file import Interval, SlideMetrics
from gigatile.evaluation.operating_points import figures_at
from gigatile.evaluation.two_cohorts import difference, rows_by_site
from gigatile.files import checksums
from gigatile.json_models import read_model, write_model
from gigatile.settings.evaluate import EvaluationSettings


class Reference(NamedTuple):
    """The figures of the test split, with which those of a new cohort are compared."""

    metrics: SlideMetrics
    calibration: CalibrationFile


def write_external(
    files: ExternalFiles,
    metrics: Path,
    calibration: Path,
    points: Path,
    settings: EvaluationSettings,
    *,
    compared: bool,
    out: Path,
) -> None:
    """Evaluate new slides with labels, and write external/metrics.json.

    Args:
        files: the predictions.
        metrics, calibration: metrics.json and calibration.json of the test split.
        points: operating_points.json of the model.
        settings: number of draws for the intervals, and their seed.
        compared: whether the new slides were compared with the cohort of the model.
        out: file to write (.json).

    Raises:
        UserError: a file is missing or damaged, or the tables have other slides than the sheet.
    """
    chosen = read_model(OperatingPoints, points)
    slides = read_external(files, chosen.classes)
    inputs = {
        "operating_points.json": points,
        "metrics.json": metrics,
        "calibration.json": calibration,
    }
    measured = evaluate_external(
        slides.predictions,
        slides.sites,
        slides.left_out,
        chosen,
        Reference(read_model(SlideMetrics, metrics), read_model(CalibrationFile, calibration)),
        settings,
        compared=compared,
        inputs=files.checksums() | checksums(inputs),
    )
    write_model(out, measured)


def evaluate_external(
    predictions: pd.DataFrame,
    sites: Mapping[str, str],
    left_out: Sequence[LeftOut],
    points: OperatingPoints,
    reference: Reference,
    settings: EvaluationSettings,
    *,
    compared: bool,
    inputs: Mapping[str, str],
) -> ExternalMetrics:
    """Compute the figures of a new cohort, and their differences from those of the test split.

    Args:
        predictions: a row per slide that counts: slide, patient, label, p_<class>…, call_mean, and
            call_vote if tiles vote.
        sites: the site of each slide, by its id; empty: not given.
        left_out: slides that count in no figure.
        points: the operating points of the model, with its classes.
        reference: the figures of the test split.
        settings: number of draws for the intervals, and their seed.
        compared: whether the new slides were compared with the cohort of the model.
        inputs: the SHA-256 of the files, by name.
    """
    metrics: SlideMetrics | None = None
    calibration: Calibration | None = None
    figures: list[PointFigures] = []
    if len(predictions):
        metrics = evaluate(predictions, points.classes, settings, {})
        calibration = calibrate(predictions, points.classes, settings)
        figures = figures_at(points.points, predictions, settings)
    return ExternalMetrics(
        classes=points.classes,
        metrics=metrics,
        calibration=calibration,
        points=figures,
        differences=_differences(metrics, calibration, figures, reference),
        sites=_by_site(predictions, sites, points.classes, settings),
        left_out=list(left_out),
        compared=compared,
        inputs=dict(inputs),
    )


def figures_by_name(
    metrics: SlideMetrics, calibration: Calibration, points: Sequence[PointFigures]
) -> dict[str, Interval]:
    """Return the figures by slide that two cohorts are compared by, with their names."""
    level = metrics.slide
    figures = {"accuracy": level.accuracy.mean_call, "ROC AUC": level.roc_auc.macro}
    figures |= {f"ROC AUC, {name}": value for name, value in level.roc_auc.per_class.items()}
    figures["average precision"] = level.average_precision.macro
    figures |= {"Brier score": calibration.brier, "calibration error": calibration.error}
    for item in points:
        point = item.point
        name = f"{point.positive}, chosen for {point.criterion} {point.wanted:g}"
        figures |= {
            f"sensitivity at {name}": item.sensitivity,
            f"specificity at {name}": item.specificity,
        }
    return figures


def _differences(
    metrics: SlideMetrics | None,
    calibration: Calibration | None,
    points: Sequence[PointFigures],
    reference: Reference,
) -> dict[str, Difference]:
    if metrics is None or calibration is None:
        return {}
    old = figures_by_name(
        reference.metrics, reference.calibration.calibration, reference.calibration.points
    )
    new = figures_by_name(metrics, calibration, points)
    return {name: difference(value, old[name]) for name, value in new.items() if name in old}


def _by_site(
    predictions: pd.DataFrame,
    sites: Mapping[str, str],
    classes: Sequence[str],
    settings: EvaluationSettings,
) -> dict[str, Site]:
    figures = {}
    for name, slides in rows_by_site(predictions, "slide", sites).items():
        level = evaluate_level(slides, classes, settings)
        figures[name] = Site(
            n=level.n,
            patients=level.patients,
            accuracy=level.accuracy.mean_call,
            roc_auc=level.roc_auc.macro,
            brier=brier_score(slides, classes, settings),
        )
    return figures
