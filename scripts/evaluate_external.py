#!/usr/bin/env python3
"""Evaluate the predictions of new data with a reference, and compare them with the test split."""

import argparse
from pathlib import Path

from gigatile.errors import run_command
from gigatile.tasks import task_part
from gigatile.tasks.command_line import add_task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    if task := add_task(parser):
        task_part(task, "external").add_arguments(parser)
    for name, text in (
        ("table", "table of the new slides or cases"),
        ("samples", "their sheet, with labels or reference segmentations"),
        ("matches", "predictions/in_cohort.tsv: slides or cases that do not count"),
        ("metrics", "metrics.json of the test split of the model"),
    ):
        parser.add_argument(f"--{name}", type=Path, required=True, help=text)
    parser.add_argument(
        "--not-compared", action="store_true", help="the cohort was not there to compare with"
    )
    parser.add_argument(
        "--settings", default="{}", help="the section `evaluate` as JSON (default: its defaults)"
    )
    parser.add_argument("--out", type=Path, required=True, help="file to write (.json)")
    args = parser.parse_args()
    task_part(args.task, "external").run(args)


if __name__ == "__main__":
    run_command(main)
