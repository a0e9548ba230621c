#!/usr/bin/env python3
"""Choose thresholds on the scores of the validation split."""

import argparse
from pathlib import Path

from gigatile.errors import run_command
from gigatile.files import checksums
from gigatile.json_models import write_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slides", type=Path, required=True, help="validation/slides.tsv")
    parser.add_argument("--described", type=Path, required=True, help="the model's settings.json")
    parser.add_argument(
        "--sensitivity", type=float, nargs="*", default=[], help="wanted, above 0 and up to 1"
    )
    parser.add_argument(
        "--specificity", type=float, nargs="*", default=[], help="wanted, above 0 and up to 1"
    )
    parser.add_argument("--out", type=Path, required=True, help="file to write (.json)")
    args = parser.parse_args()

    from gigatile.evaluation.operating_points import Criterion, choose_points
    from gigatile.evaluation.slide_table import classes_of, read_slide_table

    classes = classes_of(args.described)
    inputs = {"model/settings.json": args.described, "validation/slides.tsv": args.slides}
    wanted: dict[Criterion, list[float]] = {
        "sensitivity": args.sensitivity,
        "specificity": args.specificity,
    }
    predictions = read_slide_table(args.slides, classes)
    write_model(args.out, choose_points(predictions, classes, wanted, checksums(inputs)))


if __name__ == "__main__":
    run_command(main)
