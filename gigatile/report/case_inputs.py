"""What the stages of volumes left, read and checked; `inputs` does so for what slides share."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from gigatile.errors import UserError
from gigatile.evaluation.segmentation import COLUMNS, EMPTY
from gigatile.report.inputs import Chosen, Told, read_recorded, whole
from gigatile.settings.volumes import VolumeSettings
from gigatile.tables import read_table
from gigatile.volumes.state import CaseState


class Windows(Told):
    """How the model went over a case."""

    size: tuple[int, int, int]
    overlap: float
    flips: bool


class SegmentationState(Told):
    """What the model found in one case: segmentations/<case>.json."""

    case: str
    state: Literal["segmented", "failed"]
    volumes_ml: dict[str, float] = Field(default_factory=dict)
    windows: Windows | None = None
    inputs: dict[str, str] = Field(default_factory=dict)


class CaseModel(Told):
    """How the model was made: model/settings.json."""

    outputs: list[str]
    volumes: VolumeSettings
    patches: dict[str, Any]
    train: dict[str, Any]
    chosen: Chosen
    inputs: dict[str, str]
    sha256: str

    def settings(self) -> dict[str, Any]:
        """Return its sections for a table of settings, lists as one text each."""
        sections = {
            "volumes": self.volumes.model_dump(exclude={"stall_minutes"}),
            "patches": self.patches,
            "train": self.train,
        }
        return {name: _joined(section) for name, section in sections.items()}


@dataclass(frozen=True)
class CohortCase:
    """One row of cases.tsv: a case of the sheet and what became of it."""

    case: str
    patient: str
    split: str
    state: str
    warnings: int
    reason: str
    sources: str
    sha256: str
    site: str = ""

    @property
    def id(self) -> str:
        """The case's id."""
        return self.case


def read_cohort(path: Path) -> list[CohortCase]:
    """Read cases.tsv; the split of new cases is empty."""
    needed = ("case", "patient", "split", "state", "warnings", "reason", "sources", "sha256")
    return [
        CohortCase(
            **{name: row[name] for name in needed if name != "warnings"},
            warnings=whole(path, number, row, "warnings"),
        )
        for number, row in enumerate(read_table(path, needed), 2)
    ]


@dataclass(frozen=True)
class RegionScores:
    """How one region of a case was segmented; None is a figure that is not defined.

    Attributes:
        empty: what lacks the region: "truth", "prediction", "both", or "".
    """

    dice: float | None
    hd95_mm: float | None
    sensitivity: float | None
    specificity: float | None
    truth_ml: float
    predicted_ml: float
    empty: str


@dataclass(frozen=True)
class ScoredCase:
    """A test case's rows of evaluation/cases.tsv."""

    case: str
    patient: str
    regions: Mapping[str, RegionScores]

    @property
    def dice(self) -> float:
        """The mean over its regions."""
        values = [one.dice for one in self.regions.values() if one.dice is not None]
        return math.fsum(values) / len(values)


def read_scored(path: Path, regions: list[str]) -> list[ScoredCase]:
    """Read evaluation/cases.tsv: a row for each case and region.

    Raises:
        UserError: a cell that is no such figure, or a case that has not one row of each region.
    """
    found: dict[str, dict[str, RegionScores]] = {}
    patients: dict[str, str] = {}
    for number, row in enumerate(read_table(path, COLUMNS), 2):
        case, region = row["case"], row["region"]
        of_case = found.setdefault(case, {})
        if region in of_case or patients.setdefault(case, row["patient"]) != row["patient"]:
            raise UserError(f"{path}, row {number}: case {case!r} has region {region!r} twice")
        if row["empty"] not in ("", *EMPTY):
            raise UserError(
                f"{path}, row {number}: empty is {row['empty']!r}; must be one of "
                f"{', '.join(EMPTY)}, or nothing"
            )
        of_case[region] = RegionScores(
            dice=_number(path, number, row, "dice", 1),
            hd95_mm=_number(path, number, row, "hd95_mm"),
            sensitivity=_number(path, number, row, "sensitivity", 1),
            specificity=_number(path, number, row, "specificity", 1),
            truth_ml=_number(path, number, row, "truth_ml") or 0.0,
            predicted_ml=_number(path, number, row, "predicted_ml") or 0.0,
            empty=row["empty"],
        )
    for case, of_case in found.items():
        if set(of_case) != set(regions):
            raise UserError(
                f"{path}: case {case!r} has the regions {', '.join(of_case)}; the model's are "
                f"{', '.join(regions)}"
            )
    return [
        ScoredCase(case, patients[case], {region: of_case[region] for region in regions})
        for case, of_case in found.items()
    ]


def read_state(path: Path, case: str) -> CaseState:
    """Read the state of a case; it must be that case's."""
    state = read_recorded(CaseState, path)
    if state.case != case:
        raise UserError(f"{path}: is the state of case {state.case!r}, not of {case!r}")
    return state


def _joined(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {key: _joined(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return ", ".join(f"{one:g}" if isinstance(one, float) else str(one) for one in values)
    return values


def _number(
    path: Path, number: int, row: Mapping[str, str], column: str, most: float = math.inf
) -> float | None:
    if not row[column]:
        return None
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not 0 <= value <= most or math.isinf(value):
        wanted = "a number from 0 to 1" if most == 1 else "a number of 0 or more"
        raise UserError(f"{path}, row {number}: {column} is {row[column]!r}; must be {wanted}")
    return value
