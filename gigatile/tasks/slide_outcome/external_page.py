"""The page of an external validation of predicted outcomes."""

import argparse
from pathlib import Path

from gigatile.report.outcomes.external import write_external_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/write_external_page.py."""
    parser.add_argument(
        "--slides", type=Path, required=True, help="predictions/external/slides.tsv"
    )


def run(args: argparse.Namespace) -> None:
    """Write the page."""
    write_external_page(args.external, args.slides, args.metrics, args.title, args.out)
