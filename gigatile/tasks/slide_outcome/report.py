"""The report of predicted numbers and times to events of slides."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gigatile.report import sections
from gigatile.report.embeddings.encoder import ENCODER_SECTION
from gigatile.report.embeddings.page import read_state
from gigatile.report.embeddings.records import EMBEDDINGS
from gigatile.report.outcomes.inputs import (
    OutcomePredictor,
    read_metrics,
    read_predictions,
    read_sheet,
)
from gigatile.report.outcomes.page import FILES, outcome_pages
from gigatile.report.outcomes.sections import RESULT, TEMPLATES, TEST_SLIDES, summary
from gigatile.report.slides import cohort, left_out
from gigatile.report.task_report import NewSamples, TaskReport
from gigatile.report.whole_slides.maps import read_not_scored
from gigatile.tasks.slide_outcome.cohort import RECORDS
from gigatile.tasks.tile_classification.report import image_files


def _no_new(folder: Path, model: Any, rows: Sequence[Any]) -> Mapping[str, Any]:
    return {}


REPORT = TaskReport(
    unit="slide",
    table="tiles.tsv",
    records=RECORDS,
    kind=EMBEDDINGS,
    model=OutcomePredictor,
    columns=("label", "tiles"),
    records_column="tiles",
    read_sheet=read_sheet,
    read_state=read_state,
    read_scored=read_predictions,
    read_not_scored=read_not_scored,
    read_metrics=read_metrics,
    image_files=image_files,
    measure="residual",
    shows={
        "tiles.tsv": "Cohort; Splits (recounted); Slides left out",
        "model/settings.json": "Settings; scale of the outcomes",
        "evaluation/slides.tsv": "Test slides; Slide pages: predictions",
        "evaluation/metrics.json": "Result",
        "embeddings/*.json": "Cohort: scale; Encoder; Splits: slide files",
        "tiles/*.parquet": "Slides left out: losses",
    },
    page_files=FILES,
    pages=outcome_pages,
    evaluated=("model/settings.json", "tiles.tsv", "evaluation/slides.tsv"),
    template=TEMPLATES / "outcome_summary.html.j2",
    summary=summary,
    sections=(
        RESULT,
        TEST_SLIDES,
        cohort.SECTION,
        ENCODER_SECTION,
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
    new=NewSamples(
        template=TEMPLATES / "outcome_slides.html.j2",
        shows={},
        read=_no_new,
        values=lambda inputs: {},
    ),
)
