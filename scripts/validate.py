#!/usr/bin/env python3
"""Evaluate a segment's model on the validation split; write <epoch>.valid.json next to it."""

import argparse
from pathlib import Path

from gigatile.errors import run_command
from gigatile.software import import_tensorflow
from gigatile.tasks import task_part
from gigatile.tasks.command_line import add_task, merge_settings, parse_settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_task(parser)
    parser.add_argument("--task-settings", default="{}", help="settings of the task as JSON")
    parser.add_argument(
        "--task-execution", default="{}", help="settings of the task that do not change the result"
    )
    parser.add_argument("--segments", type=Path, required=True, help="folder of the segments")
    parser.add_argument("--epoch", type=int, required=True, help="complete epochs of the segment")
    parser.add_argument("--manifest", type=Path, required=True, help="manifest of the shards")
    parser.add_argument("--events", type=Path, help="folder for TensorBoard")
    args = parser.parse_args()
    settings = merge_settings(
        parse_settings("--task-settings", args.task_settings),
        parse_settings("--task-execution", args.task_execution),
    )
    import_tensorflow()

    from gigatile.training.segments import Segment, repeat_validation
    from gigatile.training.validation import record_validation

    segment = Segment(args.segments, args.epoch)
    if repeat_validation(segment):
        print(f"epoch {args.epoch}: not trained; the training stopped before")
        return
    validated = task_part(args.task, "validation").validate(segment, args.manifest, settings)
    record_validation(segment, args.manifest, validated, log=print, events=args.events)


if __name__ == "__main__":
    run_command(main)
