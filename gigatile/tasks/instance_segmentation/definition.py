"""Segmentation of instances: a box, a class and a mask of each object."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gigatile.cohort.images import ANNOTATIONS, Image, read_images
from gigatile.settings.detection import DetectionSettings
from gigatile.settings.instances import InstanceSettings
from gigatile.settings.slide_instances import SlideInstanceSettings, window_size
from gigatile.tasks.instance_segmentation.cohort import RECORDS
from gigatile.tasks.task import Task

# The metric of the validation by which the model is chosen: COCO's average precision of masks.
CRITERION = "mask_ap"


def _read_sheet(
    path: Path,
    settings: Any,
    labelled: bool,
    may_be_missing: Callable[[Path], bool],
    look: bool,
) -> Sequence[Image]:
    return read_images(path, labelled, may_be_missing, look)


def _training(settings: Any) -> Mapping[str, Any]:
    excluded = set(InstanceSettings.EXECUTION)
    return {
        "instances": settings.instances.model_dump(exclude=excluded),
        "detection": settings.detection.model_dump(exclude=set(DetectionSettings.INFERENCE)),
    }


def _check_windows(settings: Any) -> None:
    window_size(settings.slide_instances, settings.detection)


def _validation(settings: Any) -> Mapping[str, Any]:
    return {"detection": settings.detection.model_dump(include=set(DetectionSettings.INFERENCE))}


TASK = Task(
    description="segments instances, such as nuclei, in images.",
    columns="image, patient, path, annotations; optional mpp, split, site.",
    unit="image",
    records=RECORDS,
    table="images.tsv",
    architecture="instances",
    sections={
        "instances": (InstanceSettings, "From images and annotations to records."),
        "detection": (DetectionSettings, "How the model sees images, and what it detects."),
        "slide_instances": (
            SlideInstanceSettings,
            "Instances of whole slides, detected with the trained model.",
        ),
    },
    preparation="instances",
    read_sheet=_read_sheet,
    training=_training,
    validation=_validation,
    parts=lambda settings: settings.instances.jobs,
    train_defaults={"model": "mask_small", "epochs": 40, "segment_epochs": 8, "batch_size": 2},
    detects_on_slides=True,
    truth=(ANNOTATIONS,),
    headline=("mask AP", "mask.ap"),
    check=_check_windows,
)
