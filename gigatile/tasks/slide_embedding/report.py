"""The report of a classification of slides by embeddings of their tiles."""

from dataclasses import replace
from typing import Any

from gigatile.report import sections
from gigatile.report.embeddings.baselines import BASELINES_SECTION
from gigatile.report.embeddings.encoder import ENCODER_SECTION
from gigatile.report.embeddings.page import FILES, EmbeddingClassifier, embedding_pages, read_state
from gigatile.report.embeddings.planes import COMPONENTS_SECTION, TILES_SECTION
from gigatile.report.embeddings.records import EMBEDDINGS
from gigatile.report.groups import groups_section
from gigatile.report.slides import calibration, classification, cohort, left_out, slide_gallery
from gigatile.tasks.slide_classification.report import REPORT as SLIDES
from gigatile.tasks.slide_embedding.cohort import RECORDS


def tile_positions(run: Any) -> list[tuple[str, str, str]]:
    """Return split, hash and name of each slide with embeddings that another program made."""
    hashes = {slide: state.positions for slide, state in run.states.items()}
    return [(row.split, positions, row.id) for row in run.cohort if (positions := hashes[row.id])]


REPORT = replace(
    SLIDES,
    records=RECORDS,
    kind=EMBEDDINGS,
    model=EmbeddingClassifier,
    read_state=read_state,
    positions=tile_positions,
    shows={
        "tiles.tsv": "Cohort; Splits (recounted); Slides left out",
        "model/settings.json": "Settings; classes",
        "evaluation/slides.tsv": "Test slides; Groups; Slide pages: scores and predicted classes",
        "evaluation/metrics.json": "Result, ROC curves, Confusion, Metrics",
        "embeddings/*.json": "Cohort: scale; Encoder; Groups: scanners; Splits: slide files",
        "tiles/*.parquet": "Slides left out: losses; Slide pages: tiles dropped and marked",
    },
    page_files=FILES,
    pages=embedding_pages,
    sections=(
        classification.METRICS,
        classification.CONFUSION,
        classification.ROC,
        calibration.SECTION,
        groups_section(classification.figures_of_group, classification.scanner_of),
        slide_gallery.SECTION,
        classification.TEST_SLIDES,
        BASELINES_SECTION,
        COMPONENTS_SECTION,
        TILES_SECTION,
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
