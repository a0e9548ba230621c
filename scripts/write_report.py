#!/usr/bin/env python3
"""Write the report of a run: index.html and a page for each test slide or case."""

import argparse
from pathlib import Path

from gigatile.errors import run_command
from gigatile.report.builder import write_report
from gigatile.report.command_line import add_arguments, input_paths
from gigatile.tasks.tile_classification import report as tile_classification
from gigatile.tasks.volume_segmentation import report as volume_segmentation

REPORTS = {
    "tile_classification": tile_classification.REPORT,
    "volume_segmentation": volume_segmentation.REPORT,
}
INPUTS = ("table", "splits", "shards", "records_dir", "model_dir", "evaluation_dir")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=REPORTS, required=True)
    add_arguments(parser, INPUTS)
    parser.add_argument("--samples", type=Path, help="the sample sheet, for sites and splits")
    args = parser.parse_args()
    task = REPORTS[args.task]
    files = input_paths(args, task.inputs)
    title = args.title or f"Run {(args.run_dir or args.out.parent).resolve().name}"
    write_report(task, files, args.out, title, args.samples, top_tiles=args.top_tiles)


if __name__ == "__main__":
    run_command(main)
