#!/usr/bin/env python3
"""Prepare one slide, case or image: write its records and its state."""

import argparse

from gigatile.errors import run_command
from gigatile.tasks import task_part
from gigatile.tasks.command_line import add_task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    if task := add_task(parser):
        task_part(task, "preparation").add_arguments(parser)
    args = parser.parse_args()
    task_part(args.task, "preparation").run(args)


if __name__ == "__main__":
    run_command(main)
