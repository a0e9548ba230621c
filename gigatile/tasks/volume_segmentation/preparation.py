"""Preparation of one case: its volumes on one grid, normalised; its record and state."""

import argparse
import signal
import sys
from pathlib import Path

from gigatile.errors import UserError
from gigatile.settings.section import parse_section
from gigatile.settings.volumes import VolumeSettings
from gigatile.volumes.preparation import PreparedFiles, prepare_case


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/prepare.py."""
    parser.add_argument("--case", required=True, help="the case's id")
    parser.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="the file of a modality; image=PATH: a file with all modalities as channels",
    )
    parser.add_argument("--segmentation", type=Path, help="the file with the labels")
    parser.add_argument("--settings", required=True, help="the section `volumes` as JSON")
    parser.add_argument(
        "--stall-minutes",
        type=float,
        default=10,
        help="give up on a case after this time without progress (10)",
    )
    parser.add_argument("--records", type=Path, required=True, help="output (.tfrecord)")
    parser.add_argument("--state", type=Path, required=True, help="output (.json)")


def run(args: argparse.Namespace) -> None:
    """Prepare a case."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    state = prepare_case(
        args.case,
        _images(args.image),
        args.segmentation,
        # Regions don't affect the preparation, and the default may not fit the labels.
        parse_section(
            VolumeSettings, args.settings, regions="labels", stall_minutes=args.stall_minutes
        ),
        PreparedFiles(args.records, args.state),
    )
    if state.prepared is None or state.reason:
        print(f"{args.case}: {state.reason}")
    else:
        print(f"{args.case}: {'×'.join(map(str, state.prepared.shape))} voxels")


def _images(given: list[str]) -> dict[str, Path]:
    images: dict[str, Path] = {}
    for option in given:
        name, equals, path = option.partition("=")
        if not (name and equals and path) or name in images:
            raise UserError(f"--image: found {option!r}; must be NAME=PATH, each name once")
        images[name] = Path(path)
    return images
