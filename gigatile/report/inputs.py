"""Read and check the files of earlier stages that every report needs.

A missing or damaged file raises a `UserError` that names it, because a report of incomplete inputs
would look complete.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from gigatile.errors import UserError
from gigatile.json_models import JsonModel
from gigatile.tables import read_table


class Chosen(JsonModel):
    """The epoch of the model, which is the best of all `validated` epochs by a criterion.

    Attributes:
        valid_loss: its validation loss.
        criterion: `loss`: it has the lowest validation loss; another metric: the highest value.
        value: of that metric.
    """

    epoch: int
    valid_loss: float
    criterion: str = "loss"
    value: float | None = None
    validated: int = Field(alias="of")


class TrainedModel(JsonModel):
    """The fields of model/settings.json that all tasks have."""

    chosen: Chosen
    train: dict[str, Any]
    inputs: dict[str, str]

    def settings(self) -> dict[str, Any]:
        """Return the sections of the settings."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class CohortRow:
    """A row of tiles.tsv or cases.tsv.

    Attributes:
        label: empty for cases and for new slides.
        stratum: what tables count by: the class, or whether an event was observed; or empty.
        state: `failed`, or another state if the slide or case is usable.
        records: number of records.
        site: empty if it is not in the sample sheet.
        cells: all cells, by column.
    """

    id: str
    patient: str
    label: str = ""
    stratum: str = ""
    split: str
    state: str
    reason: str = ""
    records: int
    sha256: str
    site: str = ""
    cells: Mapping[str, str] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """The name of its files of records and states, without suffix; images share them."""
        return self.cells.get("part") or self.id


def read_cohort(
    path: Path, unit: str, columns: Sequence[str], records_column: str | None = None
) -> list[CohortRow]:
    """Read tiles.tsv or cases.tsv.

    Args:
        unit: `slide` or `case`.
        columns: further columns that the table must have.
        records_column: the column with the number of records; None: each usable row has one.
    """

    def records(number: int, row: Mapping[str, str]) -> int:
        if records_column and row.get(records_column):
            return whole_number(path, number, row, records_column)
        return int(not records_column and row["state"] != "failed")

    needed = (unit, "patient", "split", "state", "reason", "sha256", *columns)
    return [
        CohortRow(
            id=row[unit],
            label=row.get("label", ""),
            records=records(number, row),
            cells=row,
            **{name: row[name] for name in ("patient", "split", "state", "reason", "sha256")},
        )
        for number, row in enumerate(read_table(path, needed), 2)
    ]


@dataclass(frozen=True)
class ScoredRow:
    """A scored slide or case; the label of a case or a new slide is None."""

    id: str
    patient: str
    label: str | None


def read_history(path: Path, measure: str) -> dict[str, list[float]]:
    """Read history.tsv as a list for each column; a metric that was not computed is NaN.

    Args:
        measure: a metric that it must have, in addition to the loss.
    """
    columns = ("epoch", "loss", measure, "valid_loss", f"valid_{measure}")
    history: dict[str, list[float]] = {name: [] for name in columns}
    for number, row in enumerate(read_table(path, columns), 2):
        for name, cell in row.items():
            try:
                history.setdefault(name, []).append(float(cell or "nan"))
            except ValueError:
                raise bad_cell(path, number, row, name, "a number") from None
    return history


def whole_number(path: Path, number: int, row: Mapping[str, str], column: str) -> int:
    """Return a cell that is a whole number; `number` is its row in the file."""
    try:
        return int(row[column])
    except ValueError:
        raise bad_cell(path, number, row, column, "a whole number") from None


def bad_cell(
    path: Path, number: int, row: Mapping[str, str], column: str, expected: str
) -> UserError:
    """Return the error for a cell with an unexpected value."""
    return UserError(f"{path}, row {number}: {column} is {row[column]!r}; must be {expected}")
