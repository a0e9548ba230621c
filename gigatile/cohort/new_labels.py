"""Labels or references in a sheet of new data, for external validation."""

import difflib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gigatile.cohort.sheet import Member, path_of
from gigatile.errors import all_faults
from gigatile.settings.section import PLACEHOLDER


def label_of(member: Member, column: str = "label") -> str:
    """Return the label of a new slide, with white space as in the cohort; empty: not known."""
    label = " ".join(member.cells.get(column, "").split())
    return "" if label == PLACEHOLDER else label


def are_labelled(members: Iterable[Member], columns: Sequence[str] = ("label",)) -> bool:
    """Return whether a sheet of new data has labels, outcomes or files with references."""
    return any(label_of(member, column) for member in members for column in columns)


def check_new_labels(members: Sequence[Member], sheet: Path, classes: Sequence[str]) -> None:
    """Check the labels of a sheet of new slides that is used for external validation.

    Args:
        members: rows of the sheet.
        sheet: the file.
        classes: of the model.

    Raises:
        UserError: lists all rows without a label or a patient, and all labels that the model does
            not know.
    """
    faults = []
    for member in members:
        label = label_of(member)
        if not label:
            faults.append(f"row {member.row}: label is empty")
        elif label not in classes:
            near = difflib.get_close_matches(label.casefold(), map(str.casefold, classes), n=1)
            known = {name.casefold(): name for name in classes}
            hint = f"; did you mean {known[near[0]]!r}?" if near else ""
            faults.append(f"row {member.row}: label {label!r} is no class of the model{hint}")
        if not member.cells.get("patient"):
            faults.append(f"row {member.row}: patient is empty")
    if faults:
        raise all_faults(
            f"{sheet}: {len(faults)} fault(s). A sheet with labels is used for external validation:"
            f" each row needs a patient and one of the labels {', '.join(classes)}. To predict "
            "without labels, remove the column label",
            faults,
        )


def references_of(members: Iterable[Member], sheet: Path, column: str) -> dict[str, Path]:
    """Return the file with the reference of each row of a sheet of new data that has one, by id."""
    cells = {member.id: member.cells.get(column, "") for member in members}
    return {
        name: path_of(sheet.parent, cell)
        for name, cell in cells.items()
        if cell not in ("", PLACEHOLDER)
    }


def check_new_references(
    members: Sequence[Member],
    sheet: Path,
    column: str,
    may_be_missing: Callable[[Path], bool] = lambda path: False,
) -> None:
    """Check the references of a sheet of new data that is used for external validation.

    Args:
        members: rows of the sheet.
        sheet: the file.
        column: of the references.
        may_be_missing: returns whether a missing file is no fault.

    Raises:
        UserError: lists all rows without a patient, a reference or its file.
    """
    faults, references = [], references_of(members, sheet, column)
    for member in members:
        path = references.get(member.id)
        if path is None:
            faults.append(f"row {member.row}: {column} is empty")
        elif not path.is_file() and not may_be_missing(path):
            faults.append(f"row {member.row}: no file {path}")
        if not member.cells.get("patient"):
            faults.append(f"row {member.row}: patient is empty")
    if faults:
        raise all_faults(
            f"{sheet}: {len(faults)} fault(s). A sheet with {column} is used for external "
            f"validation: each row needs a patient and {column}. To predict without, remove this "
            "column",
            faults,
        )
