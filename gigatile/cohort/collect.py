"""Collect the states of all slides or cases of a cohort into one table."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gigatile.cohort.sheet import Member, is_required, stratum_of
from gigatile.cohort.state_tables import STATE_TABLES, StateTable
from gigatile.errors import UserError, all_faults
from gigatile.files import sha256_of
from gigatile.json_models import check_model, read_model
from gigatile.records.parts import image_state, part_of
from gigatile.settings.split import SPLITS
from gigatile.tables import read_table, write_table

# Columns of every table.
SHARED = ("patient", "split", "state", "reason", "sha256")


def collect_states(
    rows: Sequence[dict[str, str]],
    states_dir: Path,
    out: Path,
    sums: Path | None = None,
    tables: Mapping[str, StateTable[Any]] = STATE_TABLES,
    parts: int | None = None,
) -> None:
    """Write the table of slides (tiles.tsv), cases (cases.tsv) or images (images.tsv).

    Args:
        rows: one per slide or case: the id under `slide` or `case`, which comes first, the patient,
            and the label and split if known.
        states_dir: the folder of the states, <id>.json.
        out: the table. Its column `sha256` is the checksum of the records, so the table changes
            with them. For cases, `sources` is a checksum of the fingerprints of the input files.
        sums: a second table, with the SHA-256 of each state. A state contains the SHA-256 of all
            other files of its slide or case, so this table changes if any of them changes. The
            first table does not change if only a picture or a measurement does.
        tables: the columns by unit.
        parts: number of parts of each split in which images were prepared; see
            `gigatile.records.parts`. None: there is a state file for each row.
    """
    unit = unit_of(rows[0])
    table = tables[unit]
    written, rows_of_sums = [], []
    for row in rows:
        name = row[unit]
        if parts is None:
            path = states_dir / f"{name}.json"
            state, checksum = read_model(table.model, path), sha256_of(path)
        else:
            part = part_of(name, row.get("split", ""), parts)
            path = states_dir / f"{part}.json"
            content = image_state(states_dir, part, name)
            state = check_model(table.model, content, path)
            checksum = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
            row |= {"part": part}
        cells = row | {"state": state.state, "reason": state.reason, "sha256": state.records.sha256}
        cells |= table.cells(state)
        written.append([cells.get(column, "") for column in table.columns])
        rows_of_sums.append((name, checksum))
    write_table(out, table.columns, written)
    if sums is not None:
        write_table(sums, (unit, "state_sha256"), rows_of_sums)


def unit_of(row: Mapping[str, str]) -> str:
    """Return what a row of a table is: `slide` or `case`, the name of the first column."""
    return next(iter(row))


def rows_of_sheet(members: Sequence[Member]) -> list[dict[str, str]]:
    """Return the rows of a sheet of new slides or cases, which have neither label nor split."""
    return [{member.unit: member.id, "patient": member.patient} for member in members]


def usable_rows(table: Path, *splits: str) -> list[dict[str, str]]:
    """Return the rows of slides or cases with records; without `splits`, those of all splits."""
    return [
        row
        for row in read_table(table, SHARED)
        if row["state"] != "failed" and (not splits or row["split"] in splits)
    ]


def check_remaining(
    table: Path, splits: Sequence[str] = SPLITS, members: Sequence[Member] = ()
) -> None:
    """Refuse a cohort in which a split has no usable slide of a label (or no usable case).

    Args:
        table: written by `collect_states`.
        splits: the splits in the table.
        members: the rows of the sheet, if their labels are no classes; see `stratum_of`.

    Raises:
        UserError: lists each such label and split, with the failed slides and their reasons.
    """
    rows = read_table(table, SHARED)
    strata = {member.id: stratum_of(member) for member in members if is_required(member)}
    if members:
        unit = unit_of(rows[0])
        rows = [row | {"label": strata[row[unit]]} for row in rows if row[unit] in strata]
    faults = missing_labels(rows, splits)
    if faults:
        raise all_faults(f"{table}: the cohort cannot be used", faults)


def missing_labels(rows: Sequence[Mapping[str, str]], splits: Sequence[str] = SPLITS) -> list[str]:
    """Return a fault for each label and split without a usable slide (or case).

    Args:
        rows: the id first, then at least split, state and reason; and the label, if there is one.
        splits: the splits of the rows.
    """
    faults = []
    for label in sorted({row.get("label", "") for row in rows}):
        for split in splits:
            members = [r for r in rows if (r.get("label", ""), r["split"]) == (label, split)]
            if any(row["state"] != "failed" for row in members):
                continue
            unit = unit_of(rows[0])
            failed = "".join(f"\n      {row[unit]}: {row['reason']}" for row in members)
            subject = f"label {label!r} has " if label else ""
            faults.append(f"{subject}no usable {unit} left in {split}; failed:{failed}")
    return faults


def check_any(table: Path) -> None:
    """Refuse a table of new slides or cases of which none can be used."""
    if usable_rows(table):
        return
    rows = read_table(table, SHARED)
    if not rows:
        raise UserError(f"{table}: has no rows")
    unit = unit_of(rows[0])
    reasons = [f"{row[unit]}: {row['reason']}" for row in rows]
    raise all_faults(f"{table}: no usable {unit}", reasons)
