#!/usr/bin/env python3
"""Write the pages of new slides or cases: index.html and a page for each prediction."""

import argparse
from pathlib import Path

from gigatile.errors import run_command
from gigatile.report.command_line import add_arguments, input_paths
from gigatile.report.predictions import write_prediction_pages
from gigatile.tasks.tile_classification import report as tile_classification
from gigatile.tasks.volume_segmentation import report as volume_segmentation

REPORTS = {
    "tile_classification": tile_classification.REPORT,
    "volume_segmentation": volume_segmentation.REPORT,
}
INPUTS = ("table", "records_dir", "results_dir", "model_dir")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=REPORTS, required=True)
    add_arguments(parser, INPUTS)
    parser.add_argument(
        "--cohort",
        type=Path,
        metavar="RUN_DIR",
        help="results of the run that trained the model, to find what is in its cohort",
    )
    parser.add_argument(
        "--matches", type=Path, help="table to write, of slides or cases in the cohort"
    )
    args = parser.parse_args()
    task = REPORTS[args.task]
    files = input_paths(args, task.new_inputs)
    title = args.title or f"New {task.unit}s"
    write_prediction_pages(
        task, files, args.out, title, args.cohort, args.matches, top_tiles=args.top_tiles
    )


if __name__ == "__main__":
    run_command(main)
