"""Read and check the tables, states and settings of cases."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigatile.cohort.state_tables import fingerprints_of
from gigatile.errors import UserError
from gigatile.evaluation.segmentation import COLUMNS, EMPTY, RegionScores
from gigatile.json_models import read_model
from gigatile.report.inputs import CohortRow, ScoredRow, TrainedModel, bad_cell
from gigatile.settings.volumes import VolumeSettings
from gigatile.tables import read_table
from gigatile.volumes.segmentation_state import SegmentationState
from gigatile.volumes.state import CaseState


class TrainedSegmenter(TrainedModel):
    """model/settings.json."""

    outputs: list[str]
    volumes: VolumeSettings
    patches: dict[str, Any]
    sha256: str
    postprocessing: dict[str, Any] | None = None

    def settings(self) -> dict[str, Any]:
        """Return the sections of the settings, with each list as a text."""
        sections = {
            "volumes": self.volumes.model_dump(exclude={"stall_minutes"}),
            "patches": self.patches,
            "train": self.train,
        }
        if self.postprocessing:
            chosen = self.postprocessing.items()
            sections["postprocessing"] = {key: value for key, value in chosen if key != "tried"}
        return {name: _joined(section) for name, section in sections.items()}


@dataclass(frozen=True)
class ScoredCase(ScoredRow):
    """The rows of a test case in evaluation/cases.tsv."""

    regions: Mapping[str, RegionScores]

    @property
    def dice(self) -> float:
        """The mean Dice of the regions."""
        values = [scores.dice for scores in self.regions.values() if scores.dice is not None]
        return math.fsum(values) / len(values)


def read_scored(path: Path, model: TrainedSegmenter) -> list[ScoredCase]:
    """Read evaluation/cases.tsv: a row for each case and region.

    Raises:
        UserError: a cell is not a valid number, or a case does not have each region exactly once.
    """
    regions = list(model.volumes.region_labels)
    by_case: dict[str, dict[str, RegionScores]] = {}
    patients: dict[str, str] = {}
    for number, row in enumerate(read_table(path, COLUMNS), 2):
        case, region = row["case"], row["region"]
        scores = by_case.setdefault(case, {})
        if region in scores or patients.setdefault(case, row["patient"]) != row["patient"]:
            raise UserError(f"{path}, row {number}: case {case!r} has region {region!r} twice")
        if row["empty"] not in ("", *EMPTY):
            raise UserError(
                f"{path}, row {number}: empty is {row['empty']!r}; must be one of "
                f"{', '.join(EMPTY)}, or nothing"
            )
        scores[region] = RegionScores(
            dice=_number(path, number, row, "dice", 1),
            hd95_mm=_number(path, number, row, "hd95_mm"),
            sensitivity=_number(path, number, row, "sensitivity", 1),
            specificity=_number(path, number, row, "specificity", 1),
            diagonal_mm=_number(path, number, row, "diagonal_mm") or 0.0,
            truth_ml=_number(path, number, row, "truth_ml") or 0.0,
            predicted_ml=_number(path, number, row, "predicted_ml") or 0.0,
            lesion_dice=_number(path, number, row, "lesion_dice", 1),
            lesion_hd95_mm=_number(path, number, row, "lesion_hd95_mm"),
            lesions=_count(path, number, row, "lesions"),
            missed_lesions=_count(path, number, row, "missed_lesions"),
            false_positive_lesions=_count(path, number, row, "false_positive_lesions"),
            empty=row["empty"],
        )
    for case, scores in by_case.items():
        if set(scores) != set(regions):
            raise UserError(
                f"{path}: case {case!r} has the regions {', '.join(scores)}; the model's are "
                f"{', '.join(regions)}"
            )
    return [
        ScoredCase(case, patients[case], None, {region: scores[region] for region in regions})
        for case, scores in by_case.items()
    ]


def read_new(
    folder: Path, model: TrainedSegmenter, rows: Sequence[CohortRow]
) -> dict[str, ScoredCase | None]:
    """Return None, for no scores, for each new case that was prepared."""
    return {row.id: None for row in rows if row.records}


def read_state_of(row: CohortRow, folder: Path) -> CaseState:
    """Read the state of a case, which must match the row of cases.tsv.

    Raises:
        UserError: it is missing, damaged, or does not match.
    """
    path = folder / f"{row.id}.json"
    state = read_model(CaseState, path)
    if state.case != row.id:
        raise UserError(f"{path}: contains case {state.case!r}, expected {row.id!r}")
    fingerprints = fingerprints_of(state.sources)
    stated = (state.state, state.records.sha256, fingerprints, str(len(state.warnings)))
    if stated != (row.state, row.sha256, row.cells["sources"], row.cells["warnings"]):
        raise UserError(
            f"{path}: cases.tsv has another state, SHA-256, source file or number of warnings; one "
            "of the two is out of date"
        )
    return state


def read_segmentation(path: Path, case: str) -> SegmentationState:
    """Read the state of a segmentation.

    Raises:
        UserError: it is missing or damaged, or the case is another one or was not segmented.
    """
    state = read_model(SegmentationState, path)
    if state.case != case:
        raise UserError(f"{path}: contains case {state.case!r}, expected {case!r}")
    if state.state != "segmented":
        raise UserError(f"{path}: case {case!r} was prepared but not segmented; delete this file")
    return state


def _joined(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {key: _joined(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return ", ".join(f"{item:g}" if isinstance(item, float) else str(item) for item in values)
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
        expected = "a number from 0 to 1" if most == 1 else "a number of 0 or more"
        raise bad_cell(path, number, row, column, expected)
    return value


def _count(path: Path, number: int, row: Mapping[str, str], column: str) -> int:
    if not row[column].isdecimal():
        raise bad_cell(path, number, row, column, "a whole number of 0 or more")
    return int(row[column])
