"""The report of the toy task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from gigatile.tasks.image_brightness.cohort import ImageState, sheet

from gigatile.cohort.sheet_reading import read_sheet
from gigatile.records.example import some_bytes
from gigatile.records.tfrecord import read_sized
from gigatile.report.inputs import Chosen, Told, read_recorded
from gigatile.report.metrics import Figures, Intervals
from gigatile.report.pages import render
from gigatile.report.records import Record, RecordKind
from gigatile.report.sections import (
    left_out_section,
    provenance_section,
    settings_section,
    splits_section,
    training_section,
)
from gigatile.report.task_report import Content, NewSamples, Section, TaskReport
from gigatile.tables import read_table

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class CohortImage:
    """A row of images.tsv."""

    label: ClassVar[str] = ""
    id: str
    patient: str
    split: str
    state: str
    reason: str
    sha256: str
    site: str = ""

    @property
    def records(self) -> int:
        """A prepared image is one record."""
        return int(self.state == "prepared")


@dataclass(frozen=True)
class ScoredImage:
    """A row of evaluation/images.tsv."""

    label: ClassVar[None] = None
    id: str
    patient: str
    brightness: str
    predicted: str


class ImageModel(Told):
    """model/settings.json."""

    images: dict[str, Any]
    train: dict[str, Any]
    chosen: Chosen
    inputs: dict[str, str]

    def settings(self) -> dict[str, Any]:
        """Return the sections of the settings."""
        return {"images": self.images, "train": self.train}


class ImageMetrics(Figures):
    """evaluation/metrics.json."""

    intervals: Intervals
    error: float
    inputs: dict[str, str]

    def settings(self) -> dict[str, Any]:
        """Return the section `evaluate`."""
        return self.intervals.settings()


def _cohort(path: Path) -> list[CohortImage]:
    columns = ("patient", "split", "state", "reason", "sha256")
    rows = read_table(path, ("image", *columns))
    return [CohortImage(row["image"], **{name: row[name] for name in columns}) for row in rows]


def _scored(path: Path, model: ImageModel) -> list[ScoredImage]:
    rows = read_table(path, ("image", "patient", "brightness", "predicted"))
    return [ScoredImage(*row.values()) for row in rows]


def _record(descriptor: int, offset: int, size: int, path: Path) -> Record:
    data = read_sized(descriptor, offset, size, path)
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
    read_cohort=_cohort,
    read_sheet=lambda path: read_sheet(path, sheet(), may_be_missing=lambda file: True),
    read_state=lambda row, folder: read_recorded(ImageState, folder / f"{row.id}.json"),
    read_scored=_scored,
    read_metrics=lambda path, model, scored: read_recorded(ImageMetrics, path),
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
        splits_section(),
        training_section("images", "per image"),
        settings_section(),
        provenance_section(),
    ),
    new=NewSamples(
        template=TEMPLATES / "images.html.j2", shows={}, read=_no_new, values=lambda inputs: {}
    ),
)
