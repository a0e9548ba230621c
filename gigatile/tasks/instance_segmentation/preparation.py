"""Preparation of the images of a part: their records and states."""

import argparse
import signal
import sys
from pathlib import Path

from gigatile.cohort.images import parts_of, read_images
from gigatile.errors import UserError
from gigatile.instances.preparation import prepare_part
from gigatile.records.parts import NEW
from gigatile.settings.instances import InstanceSettings
from gigatile.settings.section import parse_section
from gigatile.settings.split import SplitSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/prepare.py."""
    parser.add_argument("--samples", type=Path, required=True, help="the sample sheet")
    parser.add_argument(
        "--splits", required=True, help="the section `split` as JSON; or `new`: images to predict"
    )
    parser.add_argument("--part", required=True, help="the part to prepare, such as train-0000")
    parser.add_argument("--parts", type=int, required=True, help="number of parts of each split")
    parser.add_argument("--settings", required=True, help="the section `instances` as JSON")
    parser.add_argument(
        "--stall-minutes",
        type=float,
        default=10,
        help="give up on an image after this time without progress (10)",
    )
    parser.add_argument("--records", type=Path, required=True, help="output (.tfrecord)")
    parser.add_argument("--state", type=Path, required=True, help="output (.json)")


def run(args: argparse.Namespace) -> None:
    """Prepare the images of a part."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    settings = parse_section(InstanceSettings, args.settings, stall_minutes=args.stall_minutes)
    splits = None if args.splits == NEW else parse_section(SplitSettings, args.splits)
    images = read_images(args.samples, splits is not None, lambda path: True, look=False)
    parts = parts_of(images, args.parts, splits)
    if args.part not in parts:
        raise UserError(f"{args.samples}: no image is in part {args.part} of {args.parts}")
    state = prepare_part(args.part, parts[args.part].images, settings, args.records, args.state)
    for image in state.images:
        if image.reason:
            print(f"{image.image}: {image.reason}")
    count = sum(sum(image.instances.values()) for image in state.images)
    print(f"part {args.part}: {len(state.images)} images, {count} instances")
