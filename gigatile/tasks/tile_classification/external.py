"""External validation of a classifier of slides: figures of new slides with labels."""

import argparse
from pathlib import Path

from gigatile.evaluation.external import write_external
from gigatile.evaluation.external_slides import ExternalFiles
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.section import parse_section


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/evaluate_external.py."""
    for name, text in (
        ("slides", "predictions/slides.tsv"),
        ("points", "operating_points.json of the model"),
        ("calibration", "calibration.json of its test split"),
    ):
        parser.add_argument(f"--{name}", type=Path, required=True, help=text)


def run(args: argparse.Namespace) -> None:
    """Compute the figures of the new slides, and compare them with those of the test split."""
    write_external(
        ExternalFiles.given(args),
        args.metrics,
        args.calibration,
        args.points,
        parse_section(EvaluationSettings, args.settings),
        compared=not args.not_compared,
        out=args.out,
    )
