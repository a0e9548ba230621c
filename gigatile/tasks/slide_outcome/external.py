"""External validation of predicted outcomes: figures of new slides with outcomes."""

import argparse
from pathlib import Path

from gigatile.evaluation.external_outcomes import evaluate_external_outcomes
from gigatile.evaluation.external_slides import ExternalFiles, read_external_outcomes
from gigatile.evaluation.outcome_scale import DescribedOutcome
from gigatile.evaluation.outcome_table import COLUMNS
from gigatile.evaluation.outcomes import OutcomeMetrics
from gigatile.files import checksums
from gigatile.json_models import read_model, write_model
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.section import parse_section
from gigatile.tables import write_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/evaluate_external.py."""
    parser.add_argument("--slides", type=Path, required=True, help="predictions/slides.tsv")
    parser.add_argument("--described", type=Path, required=True, help="settings.json of the model")


def run(args: argparse.Namespace) -> None:
    """Compute the figures of the new slides, and compare them with those of the test split."""
    settings = parse_section(EvaluationSettings, args.settings)
    reference = read_model(OutcomeMetrics, args.metrics)
    files = ExternalFiles.given(args)
    slides = read_external_outcomes(files, reference.kind)
    table = args.out.parent / "slides.tsv"
    rows = slides.predictions[list(COLUMNS)].astype(object).to_numpy().tolist()
    write_table(table, COLUMNS, rows)
    inputs = {
        "predictions/external/slides.tsv": table,
        "metrics.json": args.metrics,
        "model/settings.json": args.described,
    }
    metrics = evaluate_external_outcomes(
        slides,
        reference,
        settings,
        compared=not args.not_compared,
        inputs=files.checksums() | checksums(inputs),
        hazard=read_model(DescribedOutcome, args.described).outcome.hazard,
    )
    write_model(args.out, metrics)
