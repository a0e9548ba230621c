"""The report of predicted numbers and times to events of slides."""

from dataclasses import replace

from gigatile.cohort.outcomes import parse_outcome
from gigatile.report import sections
from gigatile.report.embeddings.encoder import ENCODER_SECTION
from gigatile.report.outcomes.inputs import (
    OutcomePredictor,
    read_metrics,
    read_predictions,
    read_sheet,
)
from gigatile.report.outcomes.page import FILES, outcome_pages
from gigatile.report.outcomes.sections import RESULT, TEMPLATES, TEST_SLIDES, summary
from gigatile.report.slides import cohort, left_out
from gigatile.tasks.slide_embedding.report import REPORT as CLASSIFICATION

REPORT = replace(
    CLASSIFICATION,
    model=OutcomePredictor,
    stratum=lambda label: parse_outcome(label).stratum,
    read_sheet=read_sheet,
    read_scored=read_predictions,
    read_metrics=read_metrics,
    measure="residual",
    shows={
        **CLASSIFICATION.shows,
        "model/settings.json": "Settings; scale of the outcomes",
        "evaluation/slides.tsv": "Test slides; Slide pages: predictions",
        "evaluation/metrics.json": "Result",
    },
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
)
