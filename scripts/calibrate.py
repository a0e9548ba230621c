#!/usr/bin/env python3
"""Compute the calibration of scored slides, and their figures at operating points."""

import argparse
from pathlib import Path

from gigatile.errors import run_command
from gigatile.evaluation.calibration_file import OperatingPoints
from gigatile.files import checksums
from gigatile.json_models import read_model, write_model
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.section import parse_section


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slides", type=Path, required=True, help="evaluation/slides.tsv")
    parser.add_argument(
        "--points", type=Path, required=True, help="validation/operating_points.json"
    )
    parser.add_argument(
        "--settings", default="{}", help="the section `evaluate` as JSON (default: its defaults)"
    )
    parser.add_argument("--out", type=Path, required=True, help="file to write (.json)")
    args = parser.parse_args()
    settings = parse_section(EvaluationSettings, args.settings)

    from gigatile.evaluation.calibration import evaluate_scores
    from gigatile.evaluation.slide_table import read_slide_table

    points = read_model(OperatingPoints, args.points)
    inputs = {"evaluation/slides.tsv": args.slides, "validation/operating_points.json": args.points}
    predictions = read_slide_table(args.slides, points.classes)
    write_model(args.out, evaluate_scores(predictions, points, settings, checksums(inputs)))


if __name__ == "__main__":
    run_command(main)
