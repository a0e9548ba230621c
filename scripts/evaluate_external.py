#!/usr/bin/env python3
"""Evaluate the predictions of new slides with labels, and compare them with the test split."""

import argparse
from pathlib import Path

from gigatile.errors import run_command
from gigatile.evaluation.calibration_file import CalibrationFile, OperatingPoints
from gigatile.evaluation.metrics_file import SlideMetrics
from gigatile.files import checksums
from gigatile.json_models import read_model, write_model
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.section import parse_section


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, text in (
        ("slides", "predictions/slides.tsv"),
        ("table", "predictions/tiles.tsv"),
        ("samples", "the sheet of the new slides, with labels"),
        ("matches", "predictions/in_cohort.tsv: slides that do not count"),
        ("points", "operating_points.json of the model"),
        ("metrics", "metrics.json of its test split"),
        ("calibration", "calibration.json of its test split"),
    ):
        parser.add_argument(f"--{name}", type=Path, required=True, help=text)
    parser.add_argument(
        "--not-compared", action="store_true", help="the cohort was not there to compare with"
    )
    parser.add_argument(
        "--settings", default="{}", help="the section `evaluate` as JSON (default: its defaults)"
    )
    parser.add_argument("--out", type=Path, required=True, help="file to write (.json)")
    args = parser.parse_args()
    settings = parse_section(EvaluationSettings, args.settings)

    from gigatile.evaluation.external import Reference, evaluate_external
    from gigatile.evaluation.external_slides import read_external

    points = read_model(OperatingPoints, args.points)
    reference = Reference(
        read_model(SlideMetrics, args.metrics), read_model(CalibrationFile, args.calibration)
    )
    slides = read_external(args.slides, args.table, args.samples, args.matches, points.classes)
    inputs = {
        "predictions/slides.tsv": args.slides,
        "predictions/tiles.tsv": args.table,
        "predictions/in_cohort.tsv": args.matches,
        "the sheet of new slides": args.samples,
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
        inputs=checksums(inputs),
    )
    write_model(args.out, metrics)


if __name__ == "__main__":
    run_command(main)
