"""The report of predicted numbers and times to events of slides."""

from dataclasses import replace
from typing import Any

from gigatile.cohort.outcomes import parse_outcome
from gigatile.report import sections
from gigatile.report.embeddings.encoder import ENCODER_SECTION
from gigatile.report.outcomes.inputs import (
    EmbeddingPredictor,
    read_metrics,
    read_new,
    read_predictions,
    read_sheet,
)
from gigatile.report.outcomes.page import FILES, OutcomePages, outcome_pages
from gigatile.report.outcomes.sections import RESULT, TEMPLATES, TEST_SLIDES, summary
from gigatile.report.slides import cohort, left_out
from gigatile.report.task_report import NewSamples
from gigatile.tasks.slide_embedding.report import REPORT as CLASSIFICATION

# What the report shows of the predictions.
SHOWS = {
    "model/settings.json": "Settings; scale of the outcomes",
    "evaluation/slides.tsv": "Test slides; Slide pages: predictions",
    "evaluation/metrics.json": "Result",
}


def new_slides(inputs: OutcomePages) -> dict[str, Any]:
    """Return the values of the first page of new slides."""
    return {"scored": list(inputs.scored.values()), "kind": inputs.model.outcome["kind"]}


REPORT = replace(
    CLASSIFICATION,
    model=EmbeddingPredictor,
    stratum=lambda label: parse_outcome(label).stratum,
    read_sheet=read_sheet,
    read_scored=read_predictions,
    read_metrics=read_metrics,
    measure="residual",
    shows={**CLASSIFICATION.shows, **SHOWS},
    page_files=FILES,
    pages=outcome_pages,
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
        template=TEMPLATES / "new_outcomes.html.j2",
        shows={
            "tiles.tsv": "Slides without a prediction",
            "slides.tsv": "New slides; Slide pages: predictions",
        },
        read=read_new,
        values=new_slides,
    ),
)
