"""Labels in a sheet of new slides, for external validation."""

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path

from gigatile.cohort.sheet import PLACEHOLDER, Member
from gigatile.errors import all_faults


def label_of(member: Member) -> str:
    """Return the label of a new slide, with white space as in the cohort; empty: not known."""
    label = " ".join(member.cells.get("label", "").split())
    return "" if label == PLACEHOLDER else label


def are_labelled(members: Iterable[Member]) -> bool:
    """Return whether a sheet of new slides has labels."""
    return any(map(label_of, members))


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
