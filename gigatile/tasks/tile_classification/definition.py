"""Classification of slides by their tiles: every tile has the label of its slide."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gigatile.cohort.samples import SLIDE_SHEET, Sample, read_samples
from gigatile.settings.tiles import TileSettings
from gigatile.tasks.task import SHORT_TRAINING, Task
from gigatile.tasks.tile_classification.cohort import RECORDS


def _read_sheet(
    path: Path,
    settings: Any,
    labelled: bool,
    may_be_missing: Callable[[Path], bool],
    look: bool,
) -> Sequence[Sample]:
    return read_samples(path, labelled, may_be_missing, look)


def _training(settings: Any) -> Mapping[str, Any]:
    return {"tiles": settings.tiles.model_dump(exclude=set(TileSettings.EXECUTION))}


TASK = Task(
    description="classifies slides by their tiles.",
    columns="slide, patient, label, path; optional mpp, split, site.",
    unit=SLIDE_SHEET.unit,
    records=RECORDS,
    table="tiles.tsv",
    architecture="tile_features",
    sections={"tiles": (TileSettings, "From slides to tiles.")},
    preparation="tiles",
    read_sheet=_read_sheet,
    training=_training,
    train_defaults={"model": "small_cnn", **SHORT_TRAINING},
    classifies_slides=True,
    truth="label",
    headline=("ROC AUC by slide", "slide.roc_auc.macro"),
    train_options=frozenset({"boost", "views"}),
)
