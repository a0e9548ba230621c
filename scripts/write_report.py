#!/usr/bin/env python3
"""Write the report of a run: index.html and a page for each test slide."""

import argparse
from pathlib import Path

from gigatile.errors import run_command
from gigatile.report import ReportFiles, write_report
from gigatile.report.command_line import add_arguments, input_paths

INPUTS = {
    "slides_table": "tiles.tsv",
    "splits": "splits.json",
    "shards": "shards/manifest.json",
    "tiles_dir": "tiles",
    "model_dir": "model",
    "evaluation_dir": "evaluation",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser, INPUTS)
    parser.add_argument("--samples", type=Path, help="the sample sheet, for the table of sites")
    args = parser.parse_args()
    files = ReportFiles(**input_paths(args, INPUTS), samples=args.samples)
    title = args.title or f"Run {(args.run_dir or args.out.parent).resolve().name}"
    write_report(files, args.out, title, args.top_tiles)


if __name__ == "__main__":
    run_command(main)
