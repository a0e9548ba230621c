"""The report of numbers and times to events that were predicted from whole slides."""

from dataclasses import replace

from gigatile.report.embeddings.encoder import ENCODER_SECTION
from gigatile.report.outcomes.inputs import WholeSlidePredictor
from gigatile.tasks.slide_classification.report import REPORT as WHOLE_SLIDES
from gigatile.tasks.slide_outcome.report import REPORT as OUTCOMES
from gigatile.tasks.slide_outcome.report import SHOWS

REPORT = replace(
    OUTCOMES,
    records=WHOLE_SLIDES.records,
    kind=WHOLE_SLIDES.kind,
    model=WholeSlidePredictor,
    read_state=WHOLE_SLIDES.read_state,
    positions=WHOLE_SLIDES.positions,
    shows={
        **WHOLE_SLIDES.shows,
        **SHOWS,
        "tiles/*.json": "Cohort: scale; Splits: slide files; Slide pages",
    },
    sections=tuple(section for section in OUTCOMES.sections if section is not ENCODER_SECTION),
)
