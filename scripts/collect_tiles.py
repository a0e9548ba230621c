#!/usr/bin/env python3
"""Gather the state of every slide into one table, and check that the cohort is still usable."""

import argparse
from pathlib import Path

from gigatile.cohort.collect import check_any, check_remaining, collect_states, rows_of_sheet
from gigatile.cohort.samples import read_samples
from gigatile.cohort.splits import COLUMNS
from gigatile.errors import run_command
from gigatile.tables import read_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    cohort = parser.add_mutually_exclusive_group(required=True)
    cohort.add_argument("--splits", type=Path, help="the slides of a cohort with their splits")
    cohort.add_argument("--new", type=Path, help="a sheet of new slides")
    parser.add_argument("--states", type=Path, required=True, help="folder of <slide>.json")
    parser.add_argument("--out", type=Path, required=True, help="to write (.tsv)")
    args = parser.parse_args()
    if args.splits:
        collect_states(read_table(args.splits, COLUMNS), args.states, args.out)
        check_remaining(args.out)
    else:
        samples = read_samples(args.new, labelled=False, made_later=lambda path: True)
        collect_states(rows_of_sheet(samples), args.states, args.out)
        check_any(args.out)


if __name__ == "__main__":
    run_command(main)
