"""What the earlier stages left, read and checked: the one place where the report meets files.

Whatever is missing or damaged here ends in a `UserError` that names the file: a report built on
half of its input would still look like a report.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pydantic import BaseModel, ConfigDict, ValidationError

from gigatile.cohort.sheet import OfPatient
from gigatile.errors import UserError, all_faults
from gigatile.files import read_json
from gigatile.report.metrics import Metrics
from gigatile.tables import read_table


class Told(BaseModel):
    """A part of a JSON file of an earlier stage; keys that the report does not show are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Chosen(Told):
    """Which epoch's model it is: the one with the least validation loss of so many."""

    epoch: int
    valid_loss: float
    of: int


class ModelSettings(Told):
    """How the model was made: model/settings.json."""

    classes: list[str]
    chosen: Chosen
    tiles: dict[str, Any]
    train: dict[str, Any]
    inputs: dict[str, str]


M = TypeVar("M", bound=BaseModel)


def read_recorded(model: type[M], path: Path) -> M:
    """Read a JSON file as `model`.

    Raises:
        UserError: the file is missing, is no JSON, or lacks what the report needs; every fault.
    """
    try:
        return model.model_validate(read_json(path))
    except ValidationError as error:
        faults = [
            f"{'.'.join(str(part) for part in fault['loc']) or 'the whole'}: {fault['msg']}"
            for fault in error.errors()
        ]
        raise all_faults(f"{path}: not what the report needs", faults) from None


def read_metrics(path: Path, classes: list[str]) -> Metrics:
    """Read evaluation/metrics.json; its classes must be the model's."""
    metrics = read_recorded(Metrics, path)
    if metrics.classes != classes:
        raise UserError(f"{path}: classes are {metrics.classes}, the model's are {classes}")
    return metrics


class CohortRow(OfPatient, Protocol):
    """A row of tiles.tsv or cases.tsv."""

    @property
    def state(self) -> str:
        """What happened to it: `tiled`, `prepared` or `failed`."""

    @property
    def sha256(self) -> str:
        """The SHA-256 of its records."""


@dataclass(frozen=True)
class CohortSlide:
    """One row of tiles.tsv: a slide of the sheet and what became of it."""

    slide: str
    patient: str
    label: str
    split: str
    state: str
    tiles: int
    reason: str
    sha256: str
    site: str

    @property
    def id(self) -> str:
        """The slide's id."""
        return self.slide


def read_cohort(path: Path) -> list[CohortSlide]:
    """Read tiles.tsv; `site` may be absent, everything else must be there."""
    needed = ("slide", "patient", "label", "split", "state", "tiles", "reason", "sha256")
    return [
        CohortSlide(
            **{name: row[name] for name in needed if name != "tiles"},
            tiles=whole(path, number, row, "tiles") if row["tiles"] else 0,
            site=row.get("site", ""),
        )
        for number, row in enumerate(read_table(path, needed), 2)
    ]


@dataclass(frozen=True)
class ScoredSlide:
    """One row of slides.tsv: the scores of a slide (mean of its tiles' scores), and its calls.

    `label` is None on a new slide, whose truth nobody has told.
    """

    slide: str
    patient: str
    label: str | None
    tiles: int
    scores: Mapping[str, float]
    call_mean: str
    call_vote: str


def read_scored(path: Path, classes: list[str], labelled: bool = True) -> list[ScoredSlide]:
    """Read slides.tsv in its order; every score must be a number from 0 to 1."""
    needed = ["slide", "tiles", *(f"p_{name}" for name in classes), "call_mean", "call_vote"]
    slides = []
    for number, row in enumerate(read_table(path, needed + ["patient", "label"] * labelled), 2):
        for call in ("call_mean", "call_vote"):
            if row[call] not in classes:
                raise UserError(
                    f"{path}, row {number}: {call} is {row[call]!r}, no class of the model"
                )
        slides.append(
            ScoredSlide(
                row["slide"],
                row.get("patient", ""),
                row["label"] if labelled else None,
                whole(path, number, row, "tiles"),
                {name: _score(path, number, row, f"p_{name}") for name in classes},
                row["call_mean"],
                row["call_vote"],
            )
        )
    return slides


def read_history(path: Path, measure: str = "accuracy") -> dict[str, list[float]]:
    """Read history.tsv as one list per column; a figure that was not measured is NaN.

    Args:
        measure: what is told beside the loss.
    """
    columns = ("epoch", "loss", measure, "valid_loss", f"valid_{measure}")
    history: dict[str, list[float]] = {name: [] for name in columns}
    for number, row in enumerate(read_table(path, columns), 2):
        for name in columns:
            try:
                history[name].append(float(row[name] or "nan"))
            except ValueError:
                raise no_number(path, number, row, name, "a number") from None
    return history


@dataclass(frozen=True)
class SlideTiles:
    """The scored tiles of one slide, n of them, in the order of their rows and columns.

    Attributes:
        x, y: (n,) int64, top-left corners in pixels of level 0.
        scores: (n, classes) float64, each from 0 to 1.
    """

    x: np.ndarray
    y: np.ndarray
    scores: np.ndarray

    def votes(self) -> np.ndarray:
        """Return how many tiles score each class highest: (classes,) int64."""
        return np.bincount(self.scores.argmax(axis=1), minlength=self.scores.shape[1])


def read_slide_tiles(path: Path, slide: str, classes: list[str], expected: int) -> SlideTiles:
    """Read one slide's tiles; only the parts of the file that can hold the slide are loaded.

    Raises:
        UserError: the file is missing or damaged, has another number of tiles than `expected`, or a
            score that is not in 0-1.
    """
    columns = ["x", "y", *(f"p_{name}" for name in classes)]
    try:
        found = ds.dataset(path, format="parquet").to_table(
            columns=columns, filter=ds.field("slide") == slide
        )
        x, y = (np.asarray(found[name], np.int64) for name in ("x", "y"))
        scores = np.stack([np.asarray(found[name], np.float64) for name in columns[2:]], axis=1)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OSError, KeyError, TypeError, ValueError) as error:
        reason = str(error).split("\n")[0].replace(str(path), Path(path).name)
        raise UserError(f"{path}: damaged, or not the tiles' scores ({reason})") from None
    if len(x) != expected:
        raise UserError(
            f"{path}: {len(x)} tiles of slide {slide!r}, where slides.tsv counts {expected}; one "
            "of the two is stale"
        )
    if not ((scores >= 0) & (scores <= 1)).all():
        raise UserError(f"{path}: slide {slide!r} has a score that is not a number from 0 to 1")
    order = np.lexsort((x, y))
    return SlideTiles(x[order], y[order], scores[order])


def whole(path: Path, number: int, row: Mapping[str, str], column: str) -> int:
    """Return a cell that is a whole number; `number` is its row in the file."""
    try:
        return int(row[column])
    except ValueError:
        raise no_number(path, number, row, column, "a whole number") from None


def _score(path: Path, number: int, row: Mapping[str, str], column: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = float("nan")
    if not 0 <= value <= 1:
        raise no_number(path, number, row, column, "a number from 0 to 1")
    return value


def no_number(
    path: Path, number: int, row: Mapping[str, str], column: str, wanted: str
) -> UserError:
    """Return an error to be raised of a cell that is not what is wanted."""
    return UserError(f"{path}, row {number}: {column} is {row[column]!r}; must be {wanted}")
