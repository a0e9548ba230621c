"""What became of each slide or case: the states of a cohort gathered into one table."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gigatile.cohort.sheet import Member
from gigatile.errors import UserError, all_faults
from gigatile.files import read_json, sha256_of
from gigatile.settings.split import SPLITS
from gigatile.tables import read_table, write_table

# Columns by what the rows are about.
COLUMNS = {
    "slide": ("slide", "patient", "label", "split", "state", "tiles", "reason", "sha256"),
    "case": (
        *("case", "patient", "split", "state", "megavoxels", "warnings"),
        *("reason", "sources", "sha256"),
    ),
}
# What every table has.
SHARED = ("patient", "split", "state", "reason", "sha256")


def collect_states(
    rows: Sequence[dict[str, str]], states_dir: Path, out: Path, sums: Path | None = None
) -> None:
    """Write the table of slides (tiles.tsv) or cases, from the state that each has left.

    Args:
        rows: one per slide or case: its id under `slide` or `case`, patient, and where known label
            and split.
        states_dir: where <id>.json lies.
        out: the table; `sha256` is of the records, so the table changes when they do. `sources` is
            of the fingerprints of a case's files, with which its prediction is compared.
        sums: a second table to write, with the SHA-256 of each state. A state contains the SHA-256
            of every other file of its slide or case, so this table changes if any of them changes.
            The first table does not change if only a picture or a measure does.
    """
    unit = unit_of(rows[0])
    written = []
    for row in rows:
        state = read_json(states_dir / f"{row[unit]}.json")
        found = {
            "state": state["state"],
            "reason": state["reason"],
            "sha256": state["records"]["sha256"],
        }
        if unit == "slide":
            found["tiles"] = state["tiles"]["kept"]
        else:
            found["megavoxels"] = megavoxels_of(state)
            found["warnings"] = len(state["warnings"])
            found["sources"] = fingerprints_of(state)
        written.append([(row | found).get(column, "") for column in COLUMNS[unit]])
    write_table(out, COLUMNS[unit], written)
    if sums is not None:
        names = [row[unit] for row in rows]
        rows_of_sums = [(name, sha256_of(states_dir / f"{name}.json")) for name in names]
        write_table(sums, (unit, "state_sha256"), rows_of_sums)


def megavoxels_of(state: Mapping[str, Any]) -> str:
    """Return the size of a prepared case."""
    shape = state["prepared"]["shape"] if state["prepared"] else [0]
    return f"{math.prod(shape) / 1e6:.6f}"


def fingerprints_of(state: Mapping[str, Any]) -> str:
    """Return one checksum of the fingerprints of all files that a case was made from."""
    text = json.dumps({name: told.get("fingerprint") for name, told in state["sources"].items()})
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def unit_of(row: Mapping[str, str]) -> str:
    """Return what a row is about: `slide` or `case`."""
    return "slide" if "slide" in row else "case"


def rows_of_sheet(members: Sequence[Member]) -> list[dict[str, str]]:
    """Return the rows of a sheet of new slides or cases, which have neither label nor split."""
    return [{member.unit: member.id, "patient": member.patient} for member in members]


def usable(table: Path, *splits: str) -> list[dict[str, str]]:
    """Return the rows of what gave records, of the given splits (none: of all)."""
    return [
        row
        for row in read_table(table, SHARED)
        if row["state"] != "failed" and (not splits or row["split"] in splits)
    ]


def check_remaining(table: Path, splits: Sequence[str] = SPLITS) -> None:
    """Refuse to go on when bad ones have taken the last slide of a label, or case, from a split.

    Args:
        table: as `collect_states` wrote it.
        splits: those that it was written of.

    Raises:
        UserError: each label and split that is concerned, with what was lost and why.
    """
    rows = read_table(table, SHARED)
    faults = []
    for label in sorted({row.get("label", "") for row in rows}):
        for split in splits:
            mine = [r for r in rows if (r.get("label", ""), r["split"]) == (label, split)]
            if any(row["state"] != "failed" for row in mine):
                continue
            unit = unit_of(rows[0])
            lost = "".join(f"\n      {row[unit]}: {row['reason']}" for row in mine)
            of_label = f"label {label!r} has " if label else ""
            faults.append(f"{of_label}no usable {unit} left in {split}; lost:{lost}")
    if faults:
        raise all_faults(f"{table}: the cohort cannot be used as it is", faults)


def check_any(table: Path) -> None:
    """Refuse a sheet of new slides or cases of which none can be used."""
    if usable(table):
        return
    rows = read_table(table, SHARED)
    if not rows:
        raise UserError(f"{table}: no row")
    unit = unit_of(rows[0])
    reasons = [f"{row[unit]}: {row['reason']}" for row in rows]
    raise all_faults(f"{table}: no {unit} could be used", reasons)
