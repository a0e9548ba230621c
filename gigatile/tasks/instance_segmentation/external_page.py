"""The page of an external validation of a segmentation of instances."""

import argparse
from pathlib import Path

from gigatile.report.instances.external import write_external_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/write_external_page.py."""
    parser.add_argument(
        "--images", type=Path, required=True, help="predictions/external/images.tsv"
    )
    parser.add_argument("--described", type=Path, required=True, help="the model's settings.json")


def run(args: argparse.Namespace) -> None:
    """Write the page."""
    write_external_page(
        args.external, args.images, args.metrics, args.described, args.title, args.out
    )
