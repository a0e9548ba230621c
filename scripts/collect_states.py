#!/usr/bin/env python3
"""Gather the state of every slide, or case, into one table, and check that enough can be used."""

import argparse
from pathlib import Path

from gigatile.cohort.collect import check_any, check_remaining, collect_states, rows_of_sheet
from gigatile.cohort.members import read_members
from gigatile.cohort.splits import assign, check_labels, checksum_of, rows_of_splits
from gigatile.errors import UserError, run_command
from gigatile.settings.section import parse_section
from gigatile.settings.split import SPLITS, SplitSettings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    sheet = parser.add_mutually_exclusive_group(required=True)
    sheet.add_argument("--samples", type=Path, help="the sample sheet of a cohort")
    sheet.add_argument("--new", type=Path, help="a sheet of new ones")
    parser.add_argument("--settings", help="of a cohort: the section `split` as JSON")
    parser.add_argument(
        "--of", nargs="+", choices=SPLITS, default=SPLITS, help="splits of the cohort (all)"
    )
    parser.add_argument(
        "--rows", help="checksum of what the sheet said of them when this was asked"
    )
    parser.add_argument(
        "--states", type=Path, required=True, help="folder of <slide>.json or <case>.json"
    )
    parser.add_argument("--out", type=Path, required=True, help="to write (.tsv)")
    parser.add_argument(
        "--checksums", type=Path, help="also write the SHA-256 of each state (.tsv)"
    )
    args = parser.parse_args()
    samples = read_members(args.samples or args.new, bool(args.samples), lambda path: True)
    if args.samples:
        if args.settings is None:
            parser.error("--samples needs --settings")
        settings = parse_section(SplitSettings, args.settings)
        # Whoever asks for no more than this learns it here, too.
        check_labels(samples, assign(samples, settings), args.samples)
        rows = rows_of_splits(samples, settings, *args.of)
        if args.rows not in (None, checksum_of(rows)):
            raise UserError(f"{args.samples}: changed while the workflow ran; call it again")
        collect_states(rows, args.states, args.out, args.checksums)
        check_remaining(args.out, args.of)
    else:
        collect_states(rows_of_sheet(samples), args.states, args.out, args.checksums)
        check_any(args.out)


if __name__ == "__main__":
    run_command(main)
