#!/usr/bin/env python3
"""Make the segment with the best validation the model of the run."""

import argparse
from pathlib import Path

from gigatile.errors import run_command
from gigatile.tasks import task_part
from gigatile.tasks.command_line import add_task, parse_settings
from gigatile.training.segments import Segment, choose_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_task(parser)
    parser.add_argument("--task-settings", default="{}", help="settings of the task as JSON")
    parser.add_argument("--manifest", type=Path, required=True, help="manifest of the shards")
    parser.add_argument("--segments", type=Path, required=True, help="folder of the segments")
    parser.add_argument(
        "--epochs", type=int, nargs="+", required=True, help="with which each segment ends"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    args = parser.parse_args()
    segments = [Segment(args.segments, epoch) for epoch in sorted(args.epochs)]
    settings = parse_settings("--task-settings", args.task_settings)
    best = choose_model(segments, args.out)
    if settings:
        task_part(args.task, "choice").complete(args.out, args.manifest, settings)
    print(f"the model is that of epoch {best.epoch}, the best of {len(segments)}")


if __name__ == "__main__":
    run_command(main)
