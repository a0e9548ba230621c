"""The section with the slides left out, and whether losses depend on the label."""

from pathlib import Path

from gigatile.report.sections import left_out_content
from gigatile.report.slides.losses import (
    ALPHA,
    LEAST_DIFFERENCE,
    SlideLoss,
    compare_losses,
    loss_rows,
    loss_warnings,
    read_loss,
)
from gigatile.report.slides.metrics import SlideRun
from gigatile.report.task_report import Banner, Content, Section
from gigatile.report.unit_pages import TILE_FOLDER

TEMPLATE = Path(__file__).parent / "templates/left_out_slides.html.j2"


def _content(run: SlideRun) -> Content:
    tests = compare_losses(_read_losses(run))
    values = {
        **left_out_content(run).values,
        "labels": run.splits.labels,
        "losses": loss_rows(tests),
        "alpha": ALPHA,
        "least_difference": LEAST_DIFFERENCE,
    }
    sentences = loss_warnings(tests)
    if not sentences:
        return Content(values)
    advice = "A model can learn from missing data: look at the overviews of these slides."
    banner = Banner(
        "Missing data depends on the label.",
        " ".join([*sentences, advice]),
        link=("left-out", "All labels"),
    )
    return Content(values, [banner])


def _read_losses(run: SlideRun) -> list[SlideLoss]:
    losses = []
    for row in run.cohort:
        grid = run.states[row.id].grid
        losses.append(
            read_loss(
                run.files["records_dir"].with_name(TILE_FOLDER) / f"{row.id}.parquet",
                row.id,
                row.patient,
                row.stratum,
                row.state != "tiled",
                grid.columns if grid else 0,
            )
        )
    return losses


SECTION = Section("left-out", "Slides left out", TEMPLATE, _content)
