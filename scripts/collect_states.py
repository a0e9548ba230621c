#!/usr/bin/env python3
"""Collect the states of all slides or cases into one table, and check that enough are usable."""

import argparse
from pathlib import Path

from gigatile.cohort.collect import (
    check_any,
    check_remaining,
    collect_states,
    rows_of_sheet,
    usable_rows,
)
from gigatile.cohort.sheet_reading import read_sheet
from gigatile.cohort.splits import assign, check_labels, checksum_of, rows_of_splits
from gigatile.errors import UserError, run_command
from gigatile.provenance.packs import pack_logs, pack_records
from gigatile.settings.section import parse_section
from gigatile.settings.split import SPLITS, SplitSettings
from gigatile.tasks import task_part
from gigatile.tasks.command_line import add_task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_task(parser)
    sheets = parser.add_mutually_exclusive_group(required=True)
    sheets.add_argument("--samples", type=Path, help="the sample sheet of a cohort")
    sheets.add_argument("--new", type=Path, help="a sheet of new slides or cases")
    parser.add_argument("--settings", help="the section `split` as JSON; for --samples")
    parser.add_argument(
        "--of", nargs="+", choices=SPLITS, default=SPLITS, help="splits to collect (all)"
    )
    parser.add_argument("--rows", help="checksum of the rows of the sheet when the job was planned")
    parser.add_argument(
        "--states", type=Path, required=True, help="folder of <slide>.json or <case>.json"
    )
    parser.add_argument(
        "--parts",
        type=int,
        help="number of jobs that prepared the images of each split",
    )
    parser.add_argument("--out", type=Path, required=True, help="to write (.tsv)")
    parser.add_argument(
        "--checksums", type=Path, help="also write the SHA-256 of each state (.tsv)"
    )
    parser.add_argument(
        "--pack",
        nargs=2,
        type=Path,
        help="folders of the records and of the logs of their jobs: pack both, but not the logs of "
        "slides or cases that failed",
    )
    args = parser.parse_args()
    cohort = task_part(args.task, "cohort")
    sheet, tables = cohort.sheet(), {cohort.sheet().unit: cohort.STATE_TABLE}
    members = read_sheet(args.samples or args.new, sheet, bool(args.samples), lambda path: True)
    if args.samples:
        if args.settings is None:
            parser.error("--samples needs --settings")
        settings = parse_section(SplitSettings, args.settings)
        # Checked here, too, as this job may run without the job that splits the patients.
        check_labels(members, assign(members, settings), args.samples)
        rows = rows_of_splits(members, settings, *args.of)
        if args.rows not in (None, checksum_of(rows)):
            raise UserError(f"{args.samples}: changed while the workflow ran; run it again")
        collect_states(rows, args.states, args.out, args.checksums, tables, args.parts)
        check_remaining(args.out, args.of, members)
    else:
        rows = rows_of_sheet(members)
        collect_states(rows, args.states, args.out, args.checksums, tables, args.parts)
        check_any(args.out)
    if args.pack:
        records, logs = args.pack
        pack_records(records, [row[sheet.unit] for row in rows])
        pack_logs(logs, [row[sheet.unit] for row in usable_rows(args.out)])


if __name__ == "__main__":
    run_command(main)
