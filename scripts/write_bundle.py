#!/usr/bin/env python3
"""Write a bundle: the trained model of a run with all that prediction needs."""

import argparse
from pathlib import Path

from gigatile.errors import run_command
from gigatile.tasks import task_part
from gigatile.tasks.command_line import add_task, parse_settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_task(parser)
    parser.add_argument("--run-dir", type=Path, required=True, help="results of the run")
    parser.add_argument(
        "--settings", required=True, help="sections that prediction depends on, as JSON"
    )
    parser.add_argument("--name", required=True, help="name of the model")
    parser.add_argument("--weights", type=Path, help="the file of train.weights")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    settings = parse_settings("--settings", args.settings)

    from gigatile.bundle.writing import write_bundle

    report = task_part(args.task, "report").REPORT
    bundle = write_bundle(
        args.run_dir, args.task, report, settings, args.name, args.out, args.weights
    )
    print(f"{args.out}: model {bundle.manifest.name}, {len(bundle.manifest.files)} files")


if __name__ == "__main__":
    run_command(main)
