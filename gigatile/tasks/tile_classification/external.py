"""External validation of a classifier of slides: figures of new slides with labels."""

import argparse
from pathlib import Path

from gigatile.evaluation.calibration_file import CalibrationFile, OperatingPoints
from gigatile.evaluation.external import Reference, evaluate_external
from gigatile.evaluation.external_slides import ExternalFiles, read_external
from gigatile.evaluation.metrics_file import SlideMetrics
from gigatile.files import checksums
from gigatile.json_models import read_model, write_model
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
    settings = parse_section(EvaluationSettings, args.settings)
    points = read_model(OperatingPoints, args.points)
    reference = Reference(
        read_model(SlideMetrics, args.metrics), read_model(CalibrationFile, args.calibration)
    )
    files = ExternalFiles.given(args)
    slides = read_external(files, points.classes)
    inputs = {
        "operating_points.json": args.points,
        "metrics.json": args.metrics,
        "calibration.json": args.calibration,
    }
    metrics = evaluate_external(
        slides.predictions,
        slides.sites,
        slides.left_out,
        points,
        reference,
        settings,
        compared=not args.not_compared,
        inputs=files.checksums() | checksums(inputs),
    )
    write_model(args.out, metrics)
