"""The toy task, for planning."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gigatile.tasks.image_brightness.cohort import RECORDS, Image, sheet
from pydantic import Field

from gigatile.cohort.sheet_reading import read_sheet
from gigatile.settings.section import Section
from gigatile.tasks.task import Task


class ImageSettings(Section):
    """The section `images`."""

    side: int = Field(16, ge=4, description="Side of the prepared images, in pixels.")
    stall_minutes: float = Field(10, gt=0, description="Time limit without progress.")


def _read(
    path: Path,
    settings: Any,
    labelled: bool,
    may_be_missing: Callable[[Path], bool],
    look: bool,
) -> Sequence[Image]:
    return read_sheet(path, sheet(), labelled, may_be_missing, look)


def _training(settings: Any) -> Mapping[str, Any]:
    return {"images": settings.images.model_dump()}


TASK = Task(
    description="predicts the brightness of images.",
    columns="image, patient, path; optional split, site.",
    unit="image",
    records=RECORDS,
    table="images.tsv",
    architecture="tile_features",
    sections={"images": (ImageSettings, "From PNG images to records.")},
    preparation="images",
    read_sheet=_read,
    training=_training,
    predicts=False,
)
