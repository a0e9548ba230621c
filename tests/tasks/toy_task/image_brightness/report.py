"""The report of the toy task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigatile.tasks.image_brightness.cohort import ImageState, sheet
from gigatile.tasks.image_brightness.evaluation import ImageMetrics

from gigatile.cohort.sheet_reading import read_sheet
from gigatile.json_models import read_model
from gigatile.records.example import some_bytes
from gigatile.records.files import RecordFile
from gigatile.records.tfrecord import read_sized
from gigatile.report.inputs import ScoredRow, TrainedModel
from gigatile.report.pages import render
from gigatile.report.records import Record, RecordKind
from gigatile.report.sections import (
    PROVENANCE_SECTION,
    SETTINGS_SECTION,
    SPLITS_SECTION,
    left_out_section,
    training_section,
)
from gigatile.report.task_report import Content, NewSamples, Section, TaskReport
from gigatile.tables import read_table

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class ScoredImage(ScoredRow):
    """A row of evaluation/images.tsv."""

    brightness: str
    predicted: str


class ImageModel(TrainedModel):
    """model/settings.json."""

    images: dict[str, Any]

    def settings(self) -> dict[str, Any]:
        """Return the sections of the settings."""
        return {"images": self.images, "train": self.train}


def _scored(path: Path, model: ImageModel) -> list[ScoredImage]:
    rows = read_table(path, ("image", "patient", "brightness", "predicted"))
    return [
        ScoredImage(row["image"], row["patient"], None, row["brightness"], row["predicted"])
        for row in rows
    ]


def _record(file: RecordFile, offset: int, size: int) -> Record:
    data = read_sized(file, offset, size)
    image, pixels = some_bytes(data, "image", "pixels")
    return Record(image.decode(), data, [pixels])


def _images(run: Any) -> Content:
    rows = [{"image": row.id, **vars(row)} for row in run.scored]
    return Content({"rows": rows})


def _no_new(folder: Path, model: Any, rows: Sequence[Any]) -> Mapping[str, Any]:
    return {}


REPORT = TaskReport(
    unit="image",
    table="images.tsv",
    records="images",
    kind=RecordKind("image", "image", _record),
    model=ImageModel,
    columns=(),
    read_sheet=lambda path: read_sheet(path, sheet(), may_be_missing=lambda file: True),
    read_state=lambda row, folder: read_model(ImageState, folder / f"{row.id}.json"),
    read_scored=_scored,
    read_metrics=lambda path, model, scored: read_model(ImageMetrics, path),
    image_files=lambda run: (),
    measure="error",
    shows={
        "images.tsv": "Splits",
        "model/settings.json": "Settings",
        "evaluation/images.tsv": "Test images",
        "evaluation/metrics.json": "Result",
    },
    page_files={},
    pages=lambda inputs: lambda name, _: (render(TEMPLATES / "image.html.j2", image=name), {}),
    evaluated=("images.tsv", "evaluation/images.tsv"),
    template=TEMPLATES / "summary.html.j2",
    summary=lambda run: {"error": run.metrics.error},
    sections=(
        Section("images", "Test images", TEMPLATES / "images.html.j2", _images),
        left_out_section("image"),
        SPLITS_SECTION,
        training_section("images", "per image"),
        SETTINGS_SECTION,
        PROVENANCE_SECTION,
    ),
    new=NewSamples(
        template=TEMPLATES / "images.html.j2", shows={}, read=_no_new, values=lambda inputs: {}
    ),
)
