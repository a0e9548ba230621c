"""Read and check the tables, states and settings of images with instances."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigatile.errors import UserError
from gigatile.evaluation.detection_metrics import DetectionMetrics
from gigatile.evaluation.image_scores import COLUMNS
from gigatile.instances.state import ImageState
from gigatile.json_models import check_model, read_model
from gigatile.records.parts import image_state
from gigatile.report.inputs import CohortRow, ScoredRow, TrainedModel, bad_cell, whole_number
from gigatile.report.task_report import Run
from gigatile.tables import read_table


class TrainedDetector(TrainedModel):
    """model/settings.json."""

    instances: dict[str, Any]
    detection: dict[str, Any]
    sha256: str

    @property
    def categories(self) -> list[str]:
        """The names of the categories."""
        return list(self.instances["categories"])

    def settings(self) -> dict[str, Any]:
        """Return the sections of the settings, with each list as a text."""
        sections = {
            "instances": self.instances,
            "detection": self.detection,
            "train": self.train,
        }
        return {
            name: {key: _joined(value) for key, value in section.items()}
            for name, section in sections.items()
        }


def _joined(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return ", ".join(f"{item:g}" if isinstance(item, float) else str(item) for item in value)
    return value


@dataclass(frozen=True)
class ScoredImage(ScoredRow):
    """A row of evaluation/images.tsv; see `gigatile.evaluation.image_scores`."""

    regions: int
    instances: int
    detections: int
    predictions: int
    matched: int
    f1: float | None
    pq: float | None
    aji: float | None

    @property
    def missed(self) -> int:
        """Annotated instances without a matching prediction."""
        return self.instances - self.matched


ImageRun = Run[ImageState, ScoredImage, TrainedDetector, DetectionMetrics]


def read_scored(path: Path, model: TrainedDetector) -> list[ScoredImage]:
    """Read evaluation/images.tsv.

    Raises:
        UserError: a cell is not a valid number.
    """
    counts = ("regions", "instances", "detections", "predictions", "matched")
    return [
        ScoredImage(
            row["image"],
            row["patient"],
            None,
            *(whole_number(path, number, row, name) for name in counts),
            *(_fraction(path, number, row, name) for name in ("f1", "pq", "aji")),
        )
        for number, row in enumerate(read_table(path, COLUMNS), 2)
    ]


def _fraction(path: Path, number: int, row: Mapping[str, str], column: str) -> float | None:
    if not row[column]:
        return None
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise bad_cell(path, number, row, column, "a number from 0 to 1")
    return value


def read_metrics(
    path: Path, model: TrainedDetector, scored: Sequence[ScoredImage]
) -> DetectionMetrics:
    """Read evaluation/metrics.json.

    Raises:
        UserError: it is damaged, its categories are not the model's, or its counts are not those of
            the scored images.
    """
    metrics = read_model(DetectionMetrics, path)
    if metrics.categories != model.categories:
        raise UserError(
            f"{path}: its categories are {', '.join(metrics.categories)}, the model's "
            f"{', '.join(model.categories)}"
        )
    counts = metrics.separate.counts.values()
    stated = {
        "images": metrics.n,
        "detections": metrics.detections,
        "predictions": metrics.separate.predictions,
        "matched instances": sum(count.matched for count in counts),
        "instances": sum(count.matched + count.missed for count in counts),
    }
    counted = {
        "images": sum(row.regions for row in scored),
        "detections": sum(row.detections for row in scored),
        "predictions": sum(row.predictions for row in scored),
        "matched instances": sum(row.matched for row in scored),
        "instances": sum(row.instances for row in scored),
    }
    for name, number in stated.items():
        if number != counted[name]:
            raise UserError(
                f"{path}: its number of {name}, {number}, differs from evaluation/images.tsv, "
                f"{counted[name]}; one of the two is out of date, run the evaluation again"
            )
    return metrics


def read_state_of(row: CohortRow, folder: Path) -> ImageState:
    """Read the state of an image, which must match the row of images.tsv.

    Raises:
        UserError: it is missing, damaged, or does not match.
    """
    path = folder / f"{row.file}.json"
    content = image_state(folder, row.file, row.id)
    state = check_model(ImageState, content, path)
    stated = (state.state, state.records.sha256, state.fingerprint or "")
    if stated != (row.state, row.sha256, row.cells["fingerprint"]):
        raise UserError(
            f"{path}: images.tsv has another state, SHA-256 or file of image {row.id!r}; one of "
            "the two is out of date"
        )
    return state


def file_of(row: CohortRow, folder: Path) -> str | None:
    """Return the fingerprint of the file of an image or slide, without its annotations.

    None: the file could not be read.

    Raises:
        UserError: the state is missing or damaged.
    """
    return read_state_of(row, folder).file


def image_files(run: ImageRun) -> list[tuple[str, str, str]]:
    """Return split, fingerprint and name of each prepared image.

    The fingerprint is that of the file alone: two rows may show different regions of a slide. Equal
    images in different files are detected by their pixels.
    """
    return [
        (row.split, fingerprint, row.id)
        for row in run.cohort
        if row.state == "prepared" and (fingerprint := run.states[row.id].file)
    ]
