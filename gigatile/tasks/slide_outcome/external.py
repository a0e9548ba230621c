"""External validation of predicted outcomes: figures of new slides with outcomes."""

import argparse
from pathlib import Path

from gigatile.evaluation.external_outcomes import write_external_outcomes
from gigatile.evaluation.external_slides import ExternalFiles
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.section import parse_section


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/evaluate_external.py."""
    parser.add_argument("--slides", type=Path, required=True, help="predictions/slides.tsv")
    parser.add_argument("--described", type=Path, required=True, help="settings.json of the model")


def run(args: argparse.Namespace) -> None:
    """Compute the figures of the new slides, and compare them with those of the test split."""
    write_external_outcomes(
        ExternalFiles.given(args),
        args.metrics,
        args.described,
        parse_section(EvaluationSettings, args.settings),
        compared=not args.not_compared,
        out=args.out,
    )
