"""The page of an external validation of a classifier of slides."""

import argparse
from pathlib import Path

from gigatile.report.slides.external import write_external_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/write_external_page.py."""
    for name, text in (
        ("calibration", "calibration.json of the test split"),
        ("points", "operating_points.json of the model"),
    ):
        parser.add_argument(f"--{name}", type=Path, required=True, help=text)


def run(args: argparse.Namespace) -> None:
    """Write the page."""
    write_external_page(
        args.external, args.metrics, args.calibration, args.points, args.title, args.out
    )
