"""Find what no single row of a sheet shows: missing files, duplicates and contradictions."""

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from gigatile.cohort.names import doubtful_names, same_names, shown
from gigatile.cohort.sheet import Member, stratum_of
from gigatile.errors import UserError
from gigatile.paths import fault_of_path
from gigatile.stores.addresses import address_of, is_remote
from gigatile.stores.sources import unreadable


def missing_files(members: Sequence[Member], may_be_missing: Callable[[Path], bool]) -> list[str]:
    """Return a fault for each file that is missing or has an unusable path."""
    faults = []
    files = [(path, member.row) for member in members for path in member.files]
    in_stores = unreadable(path for path, _ in files)
    for path, row in files:
        if fault := fault_of_path(path):
            faults.append(f"row {row}: path {str(path)!r} {fault}")
            continue
        if is_remote(path):
            if reason := in_stores.get(path):
                faults.append(f"row {row}: {address_of(path)}: {reason}")
            continue
        try:
            # os.stat, since Path.exists reports a loop of links as a missing file.
            os.stat(path)  # noqa: PTH116
            missing = False
        except (FileNotFoundError, NotADirectoryError):
            missing = True
        except OSError as error:
            faults.append(f"row {row}: {path}: {error.strerror}")
            continue
        if missing and not may_be_missing(path):
            faults.append(f"row {row}: no file {path}")
    return faults


def find_conflicts(members: Sequence[Member], look: bool) -> list[str]:
    """Return a fault for each id or file that is listed twice and each patient with two splits.

    A patient or a label with two spellings is a fault, too: one patient could be in two splits.

    Args:
        members: the rows of a sheet.
        look: whether to resolve links, so that one file under two names is detected.
    """
    by_id: dict[str, list[Member]] = defaultdict(list)
    by_path: dict[Path, list[tuple[Member, Path]]] = defaultdict(list)
    by_patient: dict[str, list[Member]] = defaultdict(list)
    resolved: dict[Path, Path] = {}
    rows_of: dict[str, dict[str, int]] = {"label": {}, "patient": {}}
    for member in members:
        if member.id:
            by_id[member.id.casefold()].append(member)
        for path in member.files:
            by_path[_resolve(path, resolved) if look else path].append((member, path))
        if member.patient:
            by_patient[member.patient].append(member)
        rows_of["label"].setdefault(stratum_of(member), member.row)
        rows_of["patient"].setdefault(member.patient, member.row)
    return [
        *(fault for same in by_id.values() for fault in _same_id(same)),
        *(fault for same in by_path.values() for fault in _same_file(same)),
        *(fault for patient, same in by_patient.items() for fault in _splits(patient, same)),
        *(fault for column, rows in rows_of.items() for fault in _spellings(column, rows)),
    ]


def _same_id(members: Sequence[Member]) -> list[str]:
    first, faults = members[0], []
    for other in members[1:]:
        fault = f"row {other.row}: {other.unit} {other.id!r} is already in row {first.row}"
        if other.id != first.id:
            fault += f" as {first.id!r}, which is the same name on some file systems"
        elif other.patient != first.patient:
            fault += f", there with patient {first.patient!r}, here with {other.patient!r}"
        elif other.label != first.label:
            fault += f", there with label {first.label!r}, here with {other.label!r}"
        faults.append(fault)
    return faults


def _same_file(files: Sequence[tuple[Member, Path]]) -> list[str]:
    first, _ = files[0]
    return [
        f"row {other.row}: file {address_of(path)} is already the file of {first.unit} "
        f"{first.id!r} in row {first.row}"
        if other.row != first.row
        else f"row {other.row}: file {address_of(path)} is in two columns"
        for other, path in files[1:]
        if other.row == first.row or other.id != first.id
    ]


def _splits(patient: str, members: Sequence[Member]) -> list[str]:
    fixed = {member.split: member for member in members if member.split}
    if len(fixed) < 2:
        return []
    where = ", ".join(f"{member.split} in row {member.row}" for member in fixed.values())
    row = max(member.row for member in fixed.values())
    return [
        f"row {row}: patient {patient!r} is fixed to several splits ({where}); "
        f"all {members[0].unit}s of a patient must be in the same split"
    ]


def _spellings(column: str, rows: dict[str, int]) -> list[str]:
    faults = []
    for spellings in same_names(rows):
        where = ", ".join(f"{shown(name)} in row {rows[name]}" for name in spellings)
        row = max(rows[name] for name in spellings)
        faults.append(f"row {row}: one {column} is spelled in two ways: {where}")
    return faults


def sheet_warnings(members: Sequence[Member]) -> list[str]:
    """Return warnings of patients or labels that may be the same, such as P10 and P1O."""
    warnings = []
    columns = {"patient": lambda member: member.patient, "label": stratum_of}
    for column, name_of in columns.items():
        rows: dict[str, int] = {}
        for member in members:
            rows.setdefault(name_of(member), member.row)
        for alike in doubtful_names(rows):
            where = ", ".join(f"{name!r} in row {rows[name]}" for name in alike)
            warnings.append(
                f"{column}s that differ only in characters that look alike (0 and O, 1 and I and "
                f"l, m and rn): {where}; if they are one {column}, use one spelling"
            )
    return warnings


def _resolve(path: Path, resolved: dict[Path, Path]) -> Path:
    """Return a file's path without links and `..`.

    `resolved` caches the folders, since resolving a path looks at every folder above it.
    """
    if is_remote(path):
        return path
    # os.path.islink, since Path raises for a loop of links and for a name that is too long.
    if os.path.islink(path):  # noqa: PTH114
        return Path(os.path.realpath(path))
    if path.parent not in resolved:
        resolved[path.parent] = Path(os.path.realpath(path.parent))
    return resolved[path.parent] / path.name


def check_columns(members: Sequence[Member], columns: Sequence[str], sheet: str) -> None:
    """Refuse columns of `report.group_by` that the sheet does not have.

    Raises:
        UserError: names the missing columns, and those that the sheet has.
    """
    has = list(members[0].cells) if members else []
    if missing := [name for name in columns if members and name not in has]:
        raise UserError(
            f"report.group_by: {sheet} has no column {', '.join(map(repr, missing))}; "
            f"its columns are {', '.join(has)}"
        )
