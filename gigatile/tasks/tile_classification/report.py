"""The report of a tile classification."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gigatile.cohort.samples import read_samples
from gigatile.cohort.sheet import Member
from gigatile.report import sections
from gigatile.report.groups import groups_section
from gigatile.report.slides import calibration, classification, cohort, left_out, slide_gallery
from gigatile.report.slides.inputs import TrainedClassifier, read_new, read_scored, read_state_of
from gigatile.report.slides.metrics import SlideRun, read_metrics
from gigatile.report.slides.page import FILES, TOP_TILES, SlidePageInputs, slide_pages
from gigatile.report.slides.records import TILES
from gigatile.report.task_report import NewSamples, TaskReport


def read_sheet(path: Path) -> Sequence[Member]:
    """Read the sample sheet; slide files may have been moved since the run."""
    return read_samples(path, may_be_missing=lambda file: True)


def image_files(run: SlideRun) -> list[tuple[str, str, str]]:
    """Return split, fingerprint and name of each slide file."""
    prints = {slide: state.source.fingerprint for slide, state in run.states.items()}
    return [
        (row.split, fingerprint, row.id) for row in run.cohort if (fingerprint := prints[row.id])
    ]


def new_slides(inputs: SlidePageInputs) -> dict[str, Any]:
    """Return the values of the first page of new slides."""
    return {"scored": list(inputs.scored.values()), "classes": inputs.model.classes, "votes": True}


REPORT = TaskReport(
    unit="slide",
    table="tiles.tsv",
    records="tiles",
    kind=TILES,
    model=TrainedClassifier,
    columns=("label", "tiles"),
    records_column="tiles",
    read_sheet=read_sheet,
    read_state=read_state_of,
    read_scored=read_scored,
    read_metrics=read_metrics,
    image_files=image_files,
    measure="accuracy",
    shows={
        "tiles.tsv": "Cohort; Splits (recounted); Slides left out",
        "model/settings.json": "Settings; classes",
        "evaluation/tiles.parquet": "Slide pages: heat maps, votes, choice of tiles",
        "evaluation/slides.tsv": "Test slides; Groups; Slide pages: scores and predicted classes",
        "evaluation/metrics.json": "Result, ROC curves, Confusion, Metrics",
        "tiles/*.json": "Cohort: scale; Groups: scanners; Splits: slide files; Slide pages",
        "tiles/*.parquet": "Slides left out: losses; Slide pages: tiles dropped and marked",
    },
    page_files=FILES,
    pages=slide_pages,
    options={"top_tiles": (TOP_TILES, "tiles shown per class of a slide")},
    evaluated=("model/model.keras", "tiles.tsv", "evaluation/slides.tsv"),
    template=classification.TEMPLATES / "summary.html.j2",
    summary=classification.summary,
    sections=(
        classification.METRICS,
        classification.CONFUSION,
        classification.ROC,
        calibration.SECTION,
        groups_section(classification.figures_of_group, classification.scanner_of),
        slide_gallery.SECTION,
        classification.TEST_SLIDES,
        cohort.SECTION,
        left_out.SECTION,
        sections.APPEARANCE_SECTION,
        sections.SPLITS_SECTION,
        sections.training_section(
            "tiles",
            "per tile after each epoch; train solid, valid dashed; the dotted line is the model.",
        ),
        sections.SETTINGS_SECTION,
        sections.PROVENANCE_SECTION,
    ),
    new=NewSamples(
        template=classification.TEMPLATES / "new_slides.html.j2",
        shows={
            "tiles.tsv": "Slides without a prediction",
            "slides.tsv": "New slides; Slide pages: scores and predicted classes",
            "tiles.parquet": "Slide pages: heat maps, votes, tiles",
        },
        read=read_new,
        values=new_slides,
    ),
)
