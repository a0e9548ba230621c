"""Classification of slides by their tiles: every tile has the label of its slide."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gigatile.cohort.samples import SLIDE_SHEET, Sample, read_samples
from gigatile.settings.augmentation import AugmentationSettings
from gigatile.settings.scores import ScoreSettings
from gigatile.settings.tiles import TileSettings
from gigatile.tasks.task import SHORT_TRAINING, Task
from gigatile.tasks.tile_classification.cohort import RECORDS

# Keys of the section `train` that all classifiers use.
CLASSIFIER_OPTIONS = frozenset(
    {"balance", "views", "label_smoothing", "focal_gamma", "class_weights"}
)


def _read_sheet(
    path: Path,
    settings: Any,
    labelled: bool,
    may_be_missing: Callable[[Path], bool],
    look: bool,
) -> Sequence[Sample]:
    return read_samples(path, labelled, may_be_missing, look)


def _training(settings: Any) -> Mapping[str, Any]:
    return {
        "tiles": settings.tiles.model_dump(exclude=set(TileSettings.EXECUTION)),
        "augmentation": settings.augmentation.model_dump(),
    }


def _choice(settings: Any) -> Mapping[str, Any]:
    # With the defaults, there is nothing to do.
    unchanged = settings.scores == ScoreSettings()
    return {} if unchanged else {"scores": settings.scores.model_dump()}


def _check(settings: Any) -> None:
    train = settings.train
    pairs = 2 * train.ranks * train.accumulate
    if settings.augmentation.mixup and train.batch_size % pairs:
        raise ValueError(
            f"augmentation.mixup mixes the tiles of a rank in pairs: train.batch_size "
            f"({train.batch_size}) must be a multiple of 2 x ranks x accumulate "
            f"(2 x {train.ranks} x {train.accumulate} = {pairs})"
        )


TASK = Task(
    description="classifies slides by their tiles.",
    columns="slide, patient, label, path; optional mpp, split, site.",
    unit=SLIDE_SHEET.unit,
    records=RECORDS,
    table="tiles.tsv",
    architecture="tile_features",
    sections={
        "tiles": (TileSettings, "From slides to tiles."),
        "augmentation": (AugmentationSettings, "Random changes of tiles, for their classifiers."),
        "scores": (ScoreSettings, "How the chosen model scores tiles."),
    },
    preparation="tiles",
    read_sheet=_read_sheet,
    training=_training,
    choice=_choice,
    train_defaults={"model": "small_cnn", **SHORT_TRAINING},
    classifies_slides=True,
    truth=("label",),
    headline=("ROC AUC by slide", "slide.roc_auc.macro"),
    check=_check,
    losses=("cross_entropy", "focal"),
    train_options=CLASSIFIER_OPTIONS
    | {"boost", "tiles_per_slide", "tiles_per_patient", "validate_steps"},
)
