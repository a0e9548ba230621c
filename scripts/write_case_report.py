#!/usr/bin/env python3
"""Write the report of a run on volumes: index.html and a page for each test case."""

import argparse
from pathlib import Path

from gigatile.errors import run_command
from gigatile.report.case_report import CaseReportFiles, write_case_report
from gigatile.report.command_line import add_arguments, input_paths

INPUTS = {
    "cases_table": "cases.tsv",
    "splits": "splits.json",
    "shards": "shards/manifest.json",
    "volumes_dir": "volumes",
    "model_dir": "model",
    "evaluation_dir": "evaluation",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser, INPUTS, tiles=False)
    parser.add_argument("--samples", type=Path, help="the sheet of cases, for the table of sites")
    args = parser.parse_args()
    files = CaseReportFiles(**input_paths(args, INPUTS), samples=args.samples)
    title = args.title or f"Run {(args.run_dir or args.out.parent).resolve().name}"
    write_case_report(files, args.out, title)


if __name__ == "__main__":
    run_command(main)
