#!/usr/bin/env python3
"""Prepare one case: its volumes put on one grid and normalised, as a record, and its state."""

import argparse
import signal
import sys
from pathlib import Path

from gigatile.errors import UserError, run_command
from gigatile.settings.section import parse_section
from gigatile.settings.volumes import VolumeSettings
from gigatile.volumes.preparing import PreparedFiles, prepare_case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", required=True, help="the case's id")
    parser.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="a modality's file; image=PATH: one file with all as its channels",
    )
    parser.add_argument("--segmentation", type=Path, help="the file of its labels")
    parser.add_argument("--settings", required=True, help="the section `volumes` as JSON")
    parser.add_argument(
        "--stall-minutes", type=float, default=10, help="without progress: a bad case (10)"
    )
    parser.add_argument("--records", type=Path, required=True, help="to write (.tfrecord)")
    parser.add_argument("--state", type=Path, required=True, help="to write (.json)")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    state = prepare_case(
        args.case,
        _images(args.image),
        args.segmentation,
        # What is made of the labels is no part of the text, and labels may not fit its default.
        parse_section(
            VolumeSettings, args.settings, regions="labels", stall_minutes=args.stall_minutes
        ),
        PreparedFiles(args.records, args.state),
    )
    if state["reason"]:
        print(f"{args.case}: {state['reason']}")
    else:
        print(f"{args.case}: {'×'.join(map(str, state['prepared']['shape']))} voxels")


def _images(given: list[str]) -> dict[str, Path]:
    images: dict[str, Path] = {}
    for one in given:
        name, equals, path = one.partition("=")
        if not (name and equals and path) or name in images:
            raise UserError(f"--image: found {one!r}; must be NAME=PATH, each name once")
        images[name] = Path(path)
    return images


if __name__ == "__main__":
    run_command(main)
