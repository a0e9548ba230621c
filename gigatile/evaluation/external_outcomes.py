"""External validation of predicted numbers and risks: slides that had no part in the training."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pandas as pd

from gigatile.evaluation.external_file import Difference, ExternalFile
from gigatile.evaluation.external_slides import (
    ExternalFiles,
    ExternalSlides,
    read_external_outcomes,
)
from gigatile.evaluation.metrics_file import Interval
from gigatile.evaluation.outcome_scale import DescribedOutcome
from gigatile.evaluation.outcome_table import COLUMNS
from gigatile.evaluation.outcomes import OutcomeMetrics, evaluate_outcomes
from gigatile.evaluation.survival import CumulativeHazard
from gigatile.evaluation.two_cohorts import difference, rows_by_site
from gigatile.files import checksums
from gigatile.json_models import Written, read_model, write_model
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.tables import write_table

EVENTS_RATIO = "observed / expected events"


class OutcomeSite(Written):
    """The figures of the slides of a site.

    Attributes:
        n, patients: number of slides, and of their patients.
        events: number of observed events; None: of numbers.
        mean_absolute_error: in units of the number; None: of times to events.
    """

    n: int
    patients: int
    events: int | None
    concordance: Interval
    mean_absolute_error: Interval | None


class ExternalOutcomeMetrics(ExternalFile):
    """The content of external/metrics.json of predicted outcomes.

    Attributes:
        metrics: of the new cohort; None: no slide was left. The median risk of the validation split
            of the model divides its patients into two groups, as those of the test split.
        differences: from the test split, by the name of the figure.
        sites: by name, at most 40 with the most patients; empty if the sheet names fewer than two.
    """

    kind: Literal["number", "survival"]
    metrics: OutcomeMetrics | None
    differences: dict[str, Difference]
    sites: dict[str, OutcomeSite]


def figures_of(metrics: OutcomeMetrics) -> dict[str, Interval]:
    """Return the figures by which two cohorts are compared, with their names."""
    figures = {"concordance": metrics.concordance}
    if numbers := metrics.numbers:
        figures |= {
            "R²": numbers.r_squared,
            "correlation (Pearson)": numbers.correlation,
            "mean absolute error": numbers.mean_absolute_error,
            "root mean squared error": numbers.root_mean_squared_error,
        }
    if metrics.survival and metrics.survival.events_ratio:
        figures[EVENTS_RATIO] = metrics.survival.events_ratio
    return figures


def write_external_outcomes(
    files: ExternalFiles,
    metrics: Path,
    described: Path | None,
    settings: EvaluationSettings,
    *,
    compared: bool,
    out: Path,
) -> Path:
    """Evaluate new slides with outcomes: write external/slides.tsv and external/metrics.json.

    Args:
        files: the predictions.
        metrics: metrics.json of the test split.
        described: settings.json of the model, with the hazard of a patient with the risk 0; None:
            of several models, which have a hazard each.
        settings: number of draws for the intervals, and their seed.
        compared: whether the new slides were compared with the cohort of the model.
        out: file to write (.json).

    Returns:
        The table.

    Raises:
        UserError: a file is missing or damaged, or the tables have other slides than the sheet.
    """
    reference = read_model(OutcomeMetrics, metrics)
    slides = read_external_outcomes(files, reference.kind)
    table = out.parent / "slides.tsv"
    rows = slides.predictions[list(COLUMNS)].astype(object).to_numpy().tolist()
    write_table(table, COLUMNS, rows)
    inputs = {"predictions/external/slides.tsv": table, "metrics.json": metrics}
    hazard = None
    if described is not None:
        inputs["model/settings.json"] = described
        hazard = read_model(DescribedOutcome, described).outcome.hazard
    measured = evaluate_external_outcomes(
        slides,
        reference,
        settings,
        compared=compared,
        inputs=files.checksums() | checksums(inputs),
        hazard=hazard,
    )
    write_model(out, measured)
    return table


def evaluate_external_outcomes(
    slides: ExternalSlides,
    reference: OutcomeMetrics,
    settings: EvaluationSettings,
    *,
    compared: bool,
    inputs: Mapping[str, str],
    hazard: CumulativeHazard | None = None,
) -> ExternalOutcomeMetrics:
    """Compute the figures of a new cohort, and their differences from those of the test split.

    Args:
        slides: of the new cohort.
        reference: the figures of the test split.
        settings: number of draws for the intervals, and their seed.
        compared: whether the new slides were compared with the cohort of the model.
        inputs: the SHA-256 of the files, by name.
        hazard: of the model, for a patient with the risk 0; None: of numbers.
    """
    threshold = reference.survival.threshold if reference.survival else None
    metrics, differences = None, {}
    if len(slides.predictions):
        metrics = evaluate_outcomes(slides.predictions, threshold, settings, {}, hazard)
        old = figures_of(reference)
        differences = {
            name: difference(value, old[name])
            for name, value in figures_of(metrics).items()
            if name in old
        }
    return ExternalOutcomeMetrics(
        kind=reference.kind,
        metrics=metrics,
        differences=differences,
        sites={
            site: _of_site(rows, threshold, settings)
            for site, rows in rows_by_site(slides.predictions, "slide", slides.sites).items()
        },
        left_out=list(slides.left_out),
        compared=compared,
        inputs=dict(inputs),
    )


def _of_site(
    slides: pd.DataFrame, threshold: float | None, settings: EvaluationSettings
) -> OutcomeSite:
    metrics = evaluate_outcomes(slides, threshold, settings, {})
    return OutcomeSite(
        n=metrics.n,
        patients=metrics.patients,
        events=metrics.survival.events if metrics.survival else None,
        concordance=metrics.concordance,
        mean_absolute_error=metrics.numbers.mean_absolute_error if metrics.numbers else None,
    )
