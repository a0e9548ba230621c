#!/usr/bin/env python3
"""Evaluate the model on the test split: predictions of each slide or case, and metrics."""

import argparse
from pathlib import Path

from gigatile.errors import run_command
from gigatile.tasks import task_part
from gigatile.tasks.command_line import add_task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    if task := add_task(parser):
        task_part(task, "evaluation").add_arguments(parser)
    parser.add_argument("--table", type=Path, required=True, help="table of slides or cases")
    parser.add_argument("--described", type=Path, required=True, help="the model's settings.json")
    parser.add_argument(
        "--settings", default="{}", help="the section `evaluate` as JSON (default: its defaults)"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for tables and metrics")
    args = parser.parse_args()
    task_part(args.task, "evaluation").run(args)


if __name__ == "__main__":
    run_command(main)
