#!/usr/bin/env python3
"""Write the pages of new slides or cases: index.html and a page for each prediction."""

import argparse
from pathlib import Path

from gigatile.errors import run_command
from gigatile.report import write_prediction_pages
from gigatile.report.command_line import add_arguments, input_paths
from gigatile.tasks import task_part
from gigatile.tasks.command_line import add_task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    if name := add_task(parser):
        task = task_part(name, "report").REPORT
        add_arguments(parser, task.new_inputs, task.options)
    parser.add_argument(
        "--cohort",
        type=Path,
        metavar="RUN_DIR",
        help="results of the run that trained the model, to find what is in its cohort",
    )
    parser.add_argument(
        "--matches", type=Path, help="table to write, of slides or cases in the cohort"
    )
    parser.add_argument(
        "--cohort-images",
        type=Path,
        help="without --cohort: hashes of the images of the cohort, as a bundle has them (.npy)",
    )
    parser.add_argument(
        "--weights", type=Path, help="with --cohort: the file that its training started from"
    )
    parser.add_argument(
        "--external", action="store_true", help="the slides have labels: link to ../external/"
    )
    args = parser.parse_args()
    files = input_paths(args, task.new_inputs)
    title = args.title or f"New {task.unit}s"
    options = {option: getattr(args, option) for option in task.options}
    write_prediction_pages(
        task,
        files,
        args.out,
        title,
        args.cohort,
        args.matches,
        args.cohort_images,
        external=args.external,
        weights=args.weights,
        **options,
    )


if __name__ == "__main__":
    run_command(main)
