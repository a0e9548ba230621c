#!/usr/bin/env python3
"""Assign the patients to train, valid and test, and prove that no patient is in two of them."""

import argparse
from pathlib import Path

from gigatile.cohort.sheet_reading import read_sheet
from gigatile.cohort.splits import assign, check_labels, prove_splits, rows_of_splits
from gigatile.errors import run_command
from gigatile.files import sha256_of
from gigatile.json_models import write_model
from gigatile.settings.section import parse_section
from gigatile.settings.split import SPLITS, SplitSettings
from gigatile.tables import write_table
from gigatile.tasks import task_part
from gigatile.tasks.command_line import add_task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_task(parser)
    parser.add_argument("--samples", type=Path, required=True, help="the sample sheet")
    parser.add_argument("--settings", required=True, help="the section `split` as JSON")
    parser.add_argument("--table", type=Path, required=True, help="to write (.tsv)")
    parser.add_argument("--proof", type=Path, required=True, help="to write (.json)")
    args = parser.parse_args()
    settings = parse_section(SplitSettings, args.settings)
    sheet = task_part(args.task, "cohort").sheet()
    samples = read_sheet(args.samples, sheet, True, lambda path: True)
    splits = assign(samples, settings)
    check_labels(samples, splits, args.samples)
    proof = prove_splits(samples, splits, settings, sha256_of(args.samples))
    rows = rows_of_splits(samples, settings, *SPLITS)
    write_table(args.table, list(rows[0]), [list(row.values()) for row in rows])
    write_model(args.proof, proof)


if __name__ == "__main__":
    run_command(main)
