"""Outcomes in a sheet of new slides, for external validation."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from gigatile.cohort.outcomes import (
    NUMBER_COLUMNS,
    SURVIVAL_COLUMNS,
    Outcome,
    read_number,
    read_time,
    several_outcomes,
)
from gigatile.cohort.sheet import Member, stratum_of
from gigatile.errors import UserError, all_faults

Kind = Literal["number", "survival"]


def kind_of(cohort: Iterable[Member]) -> Kind:
    """Return the kind of the outcomes of a cohort."""
    return "survival" if any(map(stratum_of, cohort)) else "number"


def check_new_outcomes(members: Sequence[Member], sheet: Path, kind: Kind) -> dict[str, Outcome]:
    """Return the outcome of each row of a sheet of new slides, by id.

    Args:
        members: rows of the sheet.
        sheet: the file.
        kind: of the outcomes that the model predicts. Columns of the other kind are ignored.

    Raises:
        UserError: the sheet has outcomes of the other kind only; or lists all rows without a
            patient or an outcome, and all patients with several outcomes.
    """
    columns, meaning, read = (
        (NUMBER_COLUMNS, "a number", read_number)
        if kind == "number"
        else (SURVIVAL_COLUMNS, "the time to an event", read_time)
    )
    needed = " and ".join(columns)
    purpose = (
        "A sheet with outcomes is used for external validation: each row needs a patient and "
        f"{needed}. To predict without outcomes, remove the columns value, time and event"
    )
    if members and not set(columns) <= members[0].cells.keys():
        raise UserError(
            f"{sheet}: the model predicts {meaning}, but {needed} is missing. {purpose}"
        )
    faults, outcomes = [], {}
    for member in members:
        outcome, of_row = read(member.cells)
        faults += [f"row {member.row}: {fault}" for fault in of_row]
        if not member.cells.get("patient"):
            faults.append(f"row {member.row}: patient is empty")
        if outcome is not None:
            outcomes[member.id] = outcome
    if kind == "survival":
        faults += several_outcomes(
            (member.patient, str(outcomes[member.id]), member.row)
            for member in members
            if member.id in outcomes
        )
    if faults:
        raise all_faults(f"{sheet}: {len(faults)} fault(s). {purpose}", faults)
    return outcomes
