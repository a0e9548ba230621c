#!/usr/bin/env python3
"""Apply a trained model to slides, or to one case."""

import argparse
from pathlib import Path

from gigatile.errors import run_command
from gigatile.tasks import task_part
from gigatile.tasks.command_line import add_task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    if task := add_task(parser):
        task_part(task, "prediction").add_arguments(parser)
    parser.add_argument("--model", type=Path, required=True, help="the model (.keras)")
    parser.add_argument("--described", type=Path, required=True, help="the model's settings.json")
    args = parser.parse_args()
    task_part(args.task, "prediction").run(args)


if __name__ == "__main__":
    run_command(main)
