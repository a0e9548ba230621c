#!/usr/bin/env python3
"""Write the page of an external validation."""

import argparse
from pathlib import Path

from gigatile.errors import run_command
from gigatile.tasks import task_part
from gigatile.tasks.command_line import add_task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    if task := add_task(parser):
        task_part(task, "external_page").add_arguments(parser)
    for name, text in (
        ("external", "predictions/external/metrics.json"),
        ("metrics", "metrics.json of the test split"),
    ):
        parser.add_argument(f"--{name}", type=Path, required=True, help=text)
    parser.add_argument("--title", default="External validation", help="heading of the page")
    parser.add_argument("--out", type=Path, required=True, help="file to write (.html)")
    args = parser.parse_args()
    task_part(args.task, "external_page").run(args)


if __name__ == "__main__":
    run_command(main)
