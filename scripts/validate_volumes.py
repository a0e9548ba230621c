#!/usr/bin/env python3
"""Segment the validation cases by a segment's model; write <epoch>.valid.json beside it."""

import argparse
from pathlib import Path

from gigatile.errors import run_command
from gigatile.settings.section import parse_section
from gigatile.settings.windows import WindowSettings
from gigatile.software import import_less


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=Path, required=True, help="folder of the segments")
    parser.add_argument("--epoch", type=int, required=True, help="with which the segment ends")
    parser.add_argument("--manifest", type=Path, required=True, help="of the shards")
    parser.add_argument("--windows", required=True, help="the section `windows` as JSON")
    parser.add_argument("--events", type=Path, help="folder for TensorBoard")
    args = parser.parse_args()
    windows = parse_section(WindowSettings, args.windows)
    import_less()

    from gigatile.evaluation.volume_validation import validate
    from gigatile.training.segments import Segment

    segment = Segment(args.segments, args.epoch)
    validate(segment, args.manifest, windows, tell=print, events=args.events)


if __name__ == "__main__":
    run_command(main)
