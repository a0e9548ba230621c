"""The page of an external validation: new images with annotations, next to the test split."""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from gigatile.evaluation.detection_metrics import DetectionMetrics
from gigatile.evaluation.external_images import ExternalImageMetrics, figures_by_name
from gigatile.files import write_text
from gigatile.json_models import read_model
from gigatile.report.external import ONE_MODEL, check_inputs, shared_values
from gigatile.report.instances.detection import metrics_content
from gigatile.report.instances.inputs import TrainedDetector, read_scored
from gigatile.report.instances.page import TEMPLATES
from gigatile.report.pages import render
from gigatile.report.sites import NOT_GIVEN


def write_external_page(
    external: Path, images: Path, metrics: Path, described: Path, title: str, out: Path
) -> None:
    """Write the page.

    Args:
        external: external/metrics.json.
        images: external/images.tsv.
        metrics: metrics.json of the test split.
        described: settings.json of the model.
        title: heading of the page.
        out: file to write (.html).

    Raises:
        UserError: a file is missing or damaged, or external/metrics.json was computed from other
            files.
    """
    measured = read_model(ExternalImageMetrics, external)
    files = {
        "predictions/external/images.tsv": images,
        "metrics.json": metrics,
        "model/settings.json": described,
    }
    check_inputs(external, measured.inputs, files)
    model = read_model(TrainedDetector, described)
    test = read_model(DetectionMetrics, metrics)
    values: dict[str, Any] = {"measured": None, "banners": ()}
    if measured.metrics is not None:
        content = metrics_content(measured.metrics, "new")
        rows = _rows(measured, measured.metrics, test)
        scored = read_scored(images, model)
        values = {
            "measured": measured.metrics,
            "rows": rows,
            "headline": rows[0],
            "banners": content.banners,
            "metrics": Markup(render(TEMPLATES / "metrics.html.j2", **content.values)),
            "images": sorted(scored, key=lambda row: (1.0 if row.f1 is None else row.f1, row.id)),
        }
    page = render(
        TEMPLATES / "external_images.html.j2",
        title=title,
        predictor=ONE_MODEL,
        unit="image",
        test=test,
        sites={name or NOT_GIVEN: site for name, site in measured.sites.items()},
        **shared_values(external, measured.inputs, measured.left_out, measured.compared),
        **values,
    )
    write_text(out, page)


def _rows(
    measured: ExternalImageMetrics, new: DetectionMetrics, test: DetectionMetrics
) -> list[dict[str, Any]]:
    old = figures_by_name(test)
    return [
        {
            "figure": name,
            "new": figure,
            "old": old[name],
            "difference": measured.differences[name],
        }
        for name, figure in figures_by_name(new).items()
    ]
