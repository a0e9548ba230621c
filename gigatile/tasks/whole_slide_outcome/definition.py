"""Prediction of a number, or of the risk of an event, from whole slides, trained end to end."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gigatile.cohort.outcomes import OUTCOME_SHEET, check_outcomes
from gigatile.cohort.samples import Sample
from gigatile.cohort.sheet_reading import read_sheet
from gigatile.tasks.slide_classification.definition import TASK as WHOLE_SLIDES
from gigatile.tasks.slide_outcome.definition import TASK as OUTCOMES


def _read_sheet(
    path: Path,
    settings: Any,
    labelled: bool,
    may_be_missing: Callable[[Path], bool],
    look: bool,
) -> Sequence[Sample]:
    samples = read_sheet(path, OUTCOME_SHEET, labelled, may_be_missing, look)
    check_outcomes(path, samples)
    return samples


TASK = replace(
    WHOLE_SLIDES,
    description="predicts a number or the time to an event of whole slides, trained end to end.",
    columns=OUTCOMES.columns,
    read_sheet=_read_sheet,
    classifies_slides=False,
    predicts_outcomes=True,
    truth=OUTCOMES.truth,
    losses=(),
    headline=OUTCOMES.headline,
    compares=False,
    train_options=frozenset({"views", "slides_per_patient"}),
)
