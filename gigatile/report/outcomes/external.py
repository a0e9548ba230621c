"""The page of an external validation: new slides with outcomes, compared with the test split."""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from gigatile.evaluation.external_outcomes import ExternalOutcomeMetrics, figures_of
from gigatile.evaluation.outcomes import OutcomeMetrics
from gigatile.files import write_text
from gigatile.json_models import read_model
from gigatile.report.external import (
    ONE_MODEL,
    Predictor,
    check_inputs,
    compared_rows,
    shared_values,
)
from gigatile.report.outcomes.inputs import read_outcomes
from gigatile.report.outcomes.sections import TEMPLATES, result_content
from gigatile.report.pages import render
from gigatile.report.sites import NOT_GIVEN

# What the text at the top of the page names.
HEADLINE = "concordance"


def write_external_page(
    external: Path,
    slides: Path,
    metrics: Path,
    title: str,
    out: Path,
    predictor: Predictor = ONE_MODEL,
) -> None:
    """Write the page.

    Args:
        external: external/metrics.json.
        slides: external/slides.tsv.
        metrics: metrics.json of the test split.
        title: heading of the page.
        out: file to write (.html).
        predictor: what predicted the new slides.

    Raises:
        UserError: a file is missing or damaged, or external/metrics.json was computed from other
            files.
    """
    measured = read_model(ExternalOutcomeMetrics, external)
    files = {"predictions/external/slides.tsv": slides, "metrics.json": metrics}
    check_inputs(external, measured.inputs, files)
    test = read_model(OutcomeMetrics, metrics)
    scored = read_outcomes(slides)
    values: dict[str, Any] = {"measured": None}
    if measured.metrics is not None:
        old, new = figures_of(test), figures_of(measured.metrics)
        rows = compared_rows(new, old, measured.differences)
        content = result_content(measured.metrics, scored, "new")
        values = {
            "measured": measured.metrics,
            "rows": rows,
            "headline": next(row for row in rows if row["name"] == HEADLINE),
            "result": Markup(render(TEMPLATES / "result.html.j2", **content.values)),
            "slides": scored,
        }
    page = render(
        TEMPLATES / "external_outcomes.html.j2",
        title=title,
        unit="slide",
        banners=predictor.banners,
        predictor=predictor,
        test=test,
        kind=measured.kind,
        sites={name or NOT_GIVEN: site for name, site in measured.sites.items()},
        **shared_values(external, measured.inputs, measured.left_out, measured.compared),
        **values,
    )
    write_text(out, page)
