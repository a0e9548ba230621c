"""The page of an external validation: new cases with references, compared with the test split."""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from gigatile.evaluation.external_cases import ExternalCaseMetrics, figures_of
from gigatile.evaluation.metrics_file import CaseMetrics
from gigatile.files import write_text
from gigatile.json_models import read_model
from gigatile.report.cases.inputs import TrainedSegmenter, read_scored
from gigatile.report.cases.segmentation import SHOWN, TEMPLATES, metrics_content
from gigatile.report.external import ONE_MODEL, check_inputs, shared_values
from gigatile.report.pages import render
from gigatile.report.sites import NOT_GIVEN


def write_external_page(
    external: Path, cases: Path, metrics: Path, described: Path, title: str, out: Path
) -> None:
    """Write the page.

    Args:
        external: external/metrics.json.
        cases: external/cases.tsv.
        metrics: metrics.json of the test split.
        described: settings.json of the model.
        title: heading of the page.
        out: file to write (.html).

    Raises:
        UserError: a file is missing or damaged, or external/metrics.json was computed from other
            files.
    """
    measured = read_model(ExternalCaseMetrics, external)
    files = {
        "predictions/external/cases.tsv": cases,
        "metrics.json": metrics,
        "model/settings.json": described,
    }
    check_inputs(external, measured.inputs, files)
    test = read_model(CaseMetrics, metrics)
    scored = read_scored(cases, read_model(TrainedSegmenter, described))
    values: dict[str, Any] = {"measured": None, "banners": ()}
    if measured.metrics is not None:
        content = metrics_content(measured.metrics, scored, "new")
        rows = _rows(measured, measured.metrics, test)
        values = {
            "measured": measured.metrics,
            "rows": rows,
            "headline": rows[0],
            "banners": content.banners,
            "metrics": Markup(render(TEMPLATES / "metrics.html.j2", **content.values)),
            "cases": sorted(scored, key=lambda case: (case.dice, case.id)),
        }
    page = render(
        TEMPLATES / "external_cases.html.j2",
        title=title,
        predictor=ONE_MODEL,
        unit="case",
        test=test,
        regions=measured.regions,
        sites={name or NOT_GIVEN: site for name, site in measured.sites.items()},
        **shared_values(external, measured.inputs, measured.left_out, measured.compared),
        **values,
    )
    write_text(out, page)


def _rows(
    measured: ExternalCaseMetrics, new: CaseMetrics, test: CaseMetrics
) -> list[dict[str, Any]]:
    """Return a row for each metric and region; first the means over the regions."""
    rows = []
    for name, shown, digits in SHOWN:
        of_new, of_test = (figures_of(getattr(metrics, name)) for metrics in (new, test))
        for region in reversed(of_new):
            rows.append(
                {
                    "metric": shown,
                    "region": region,
                    "digits": digits,
                    "new": of_new[region],
                    "old": of_test[region],
                    "difference": measured.differences[name][region],
                }
            )
    return rows
