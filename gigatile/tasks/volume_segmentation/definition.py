"""Segmentation of volumes: labels, or regions of labels, of each voxel."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gigatile.cohort.cases import Case, read_cases
from gigatile.cohort.declared import check_declared, datasets_of
from gigatile.settings.patches import PatchSettings
from gigatile.settings.postprocessing import PostprocessingSettings
from gigatile.settings.volumes import LABELS_REQUIRED, VolumeSettings
from gigatile.settings.windows import WindowSettings
from gigatile.tasks.task import SHORT_TRAINING, Task
from gigatile.tasks.volume_segmentation.cohort import RECORDS
from gigatile.tasks.volume_segmentation.loss_names import LOSSES


def _read_sheet(
    path: Path,
    settings: Any,
    labelled: bool,
    may_be_missing: Callable[[Path], bool],
    look: bool,
) -> Sequence[Case]:
    cases = read_cases(path, settings.volumes.modalities, labelled, may_be_missing, look)
    for dataset in datasets_of(cases):
        check_declared(dataset, settings.volumes)
    return cases


def _training(settings: Any) -> Mapping[str, Any]:
    # Cases are prepared without `regions`, but training depends on them.
    volumes = settings.volumes.model_dump(exclude=set(VolumeSettings.EXECUTION) - {"regions"})
    return {"volumes": volumes, "patches": settings.patches.model_dump()}


def _validation(settings: Any) -> Mapping[str, Any]:
    return {"windows": settings.windows.model_dump()}


def _choice(settings: Any) -> Mapping[str, Any]:
    # By default, there is nothing to choose.
    if settings.postprocessing == PostprocessingSettings():
        return {}
    return {
        "postprocessing": settings.postprocessing.model_dump(),
        "windows": settings.windows.model_dump(),
    }


def _check(settings: Any) -> None:
    if settings.volumes.labels is None:
        raise ValueError(f"volumes.{LABELS_REQUIRED}")


TASK = Task(
    description="segments NIfTI volumes.",
    columns="case, patient, a column per modality or `image`, segmentation; optional split, site.",
    unit="case",
    records=RECORDS,
    table="cases.tsv",
    architecture="voxel_scores",
    sections={
        "volumes": (VolumeSettings, "From NIfTI volumes to prepared cases."),
        "patches": (PatchSettings, "From prepared cases to training samples."),
        "windows": (WindowSettings, "From a model to the segmentation of a whole volume."),
        "postprocessing": (PostprocessingSettings, "What is removed from a segmented volume."),
    },
    preparation="volumes",
    read_sheet=_read_sheet,
    training=_training,
    validation=_validation,
    choice=_choice,
    train_defaults={"model": "small_unet", **SHORT_TRAINING},
    truth=("segmentation",),
    losses=LOSSES,
    train_options=frozenset({"focal_gamma", "validate_steps"}),
    headline=("mean Dice", "dice.mean"),
    check=_check,
)
