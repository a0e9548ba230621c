"""The report of a classification of whole slides."""

from dataclasses import replace
from functools import partial
from typing import Any

from gigatile.report import sections
from gigatile.report.groups import groups_section
from gigatile.report.slides import calibration, classification, cohort, left_out, slide_gallery
from gigatile.report.slides.inputs import read_new, read_scored
from gigatile.report.slides.page import SlidePageInputs
from gigatile.report.whole_slides import agreement
from gigatile.report.whole_slides.maps import read_not_scored
from gigatile.report.whole_slides.page import FILES, WholeSlideClassifier, whole_slide_pages
from gigatile.tasks.tile_classification.report import REPORT as TILES


def new_slides(inputs: SlidePageInputs) -> dict[str, Any]:
    """Return the values of the first page of new slides."""
    scored = list(inputs.scored.values())
    return {"scored": scored, "classes": inputs.model.classes, "votes": False}


REPORT = replace(
    TILES,
    model=WholeSlideClassifier,
    read_not_scored=read_not_scored,
    read_scored=partial(read_scored, votes=False),
    shows={
        "tiles.tsv": "Cohort; Splits (recounted); Slides left out",
        "model/settings.json": "Settings; classes",
        "evaluation/slides.tsv": "Test slides; Groups; Slide pages: scores and predicted classes",
        "evaluation/metrics.json": "Result, ROC curves, Confusion, Metrics",
        "tiles/*.json": "Cohort: scale; Groups: scanners; Splits: slide files; Slide pages",
        "tiles/*.parquet": "Slides left out: losses; Slide pages: tiles dropped and marked",
    },
    page_files=FILES,
    pages=whole_slide_pages,
    evaluated=("model/settings.json", "tiles.tsv", "evaluation/slides.tsv"),
    sections=(
        classification.METRICS,
        classification.CONFUSION,
        classification.ROC,
        calibration.SECTION,
        groups_section(classification.figures_of_group, classification.scanner_of),
        agreement.SECTION,
        slide_gallery.SECTION,
        classification.TEST_SLIDES,
        cohort.SECTION,
        left_out.SECTION,
        sections.APPEARANCE_SECTION,
        sections.SPLITS_SECTION,
        sections.training_section(
            "slides",
            "per slide after each epoch; train solid, valid dashed; the dotted line is the model.",
        ),
        sections.SETTINGS_SECTION,
        sections.PROVENANCE_SECTION,
    ),
    new=replace(
        TILES.new,
        shows={
            "tiles.tsv": "Slides without a prediction",
            "slides.tsv": "New slides; Slide pages: scores and predicted classes",
        },
        read=partial(read_new, votes=False),
        values=new_slides,
    ),
)
