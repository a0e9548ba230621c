"""Prediction of a number, or of the risk of an event, from the embeddings of a slide's tiles."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gigatile.cohort.outcomes import OUTCOME_COLUMNS, OUTCOME_SHEET, check_outcomes
from gigatile.cohort.samples import Sample
from gigatile.cohort.sheet_reading import read_sheet
from gigatile.tasks.slide_embedding.definition import TASK as EMBEDDINGS
from gigatile.tasks.slide_embedding.definition import check_paths


def read_outcomes(
    path: Path,
    settings: Any,
    labelled: bool,
    may_be_missing: Callable[[Path], bool],
    look: bool,
) -> Sequence[Sample]:
    """Read and check a sheet of slides with outcomes; see `gigatile.tasks.task.SheetReader`."""
    samples = read_sheet(path, OUTCOME_SHEET, labelled, may_be_missing, look)
    check_outcomes(path, samples)
    return samples


def _read_sheet(
    path: Path,
    settings: Any,
    labelled: bool,
    may_be_missing: Callable[[Path], bool],
    look: bool,
) -> Sequence[Sample]:
    samples = read_outcomes(path, settings, labelled, may_be_missing, look)
    check_paths(path, samples, settings)
    return samples


TASK = replace(
    EMBEDDINGS,
    description="predicts a number or the time to an event of slides by embeddings of their tiles.",
    columns="slide, patient, value (or time, event), path; optional mpp, split, site.",
    read_sheet=_read_sheet,
    classifies_slides=False,
    predicts_outcomes=True,
    truth=OUTCOME_COLUMNS,
    losses=(),
    headline=("concordance", "concordance"),
    train_options=frozenset({"tiles_per_slide", "slides_per_patient"}),
)
