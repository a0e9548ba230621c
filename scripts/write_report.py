#!/usr/bin/env python3
"""Write the report of a run: index.html and a page for each test slide or case."""

import argparse
from functools import partial
from pathlib import Path

from gigatile.errors import run_command
from gigatile.report import write_report
from gigatile.report.command_line import add_arguments, input_paths
from gigatile.report.viewer_links import viewer_address
from gigatile.tasks import task_part
from gigatile.tasks.command_line import add_task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    if name := add_task(parser):
        task = task_part(name, "report").REPORT
        add_arguments(parser, task.inputs, task.options)
    parser.add_argument("--samples", type=Path, help="the sample sheet, for sites and splits")
    parser.add_argument(
        "--group-by",
        action="append",
        default=[],
        metavar="COLUMN",
        help="a column of the sheet whose values are compared; can be repeated",
    )
    parser.add_argument("--compare", type=Path, help="folder of another run, to compare the maps")
    parser.add_argument("--weights", type=Path, help="the file of train.weights")
    parser.add_argument("--viewer", help="address of a server that shows the run in its viewer")
    args = parser.parse_args()
    files = input_paths(args, task.inputs)
    run = (args.run_dir or args.out.parent).resolve().name
    viewer = partial(viewer_address, args.viewer, run) if args.viewer else None
    options = {option: getattr(args, option) for option in task.options}
    write_report(
        task,
        files,
        args.out,
        args.title or f"Run {run}",
        args.samples,
        args.group_by,
        args.compare,
        args.weights,
        viewer,
        **options,
    )


if __name__ == "__main__":
    run_command(main)
