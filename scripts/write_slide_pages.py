#!/usr/bin/env python3
"""Write the pages of whole slides with detected instances, and the table of all of them."""

import argparse
from pathlib import Path

from gigatile.cohort.samples import read_samples
from gigatile.errors import run_command
from gigatile.report.instances.slide_pages import write_slide_pages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="results of the run")
    parser.add_argument("--model-dir", type=Path, help="instead of RUN_DIR/model")
    parser.add_argument(
        "--cohort",
        type=Path,
        metavar="RUN_DIR",
        help="results of the run that trained the model, to find what is in its cohort",
    )
    parser.add_argument("--slides", type=Path, required=True, help="the sheet of the slides")
    parser.add_argument("--table", type=Path, required=True, help="table to write (.tsv)")
    parser.add_argument(
        "--matches", type=Path, required=True, help="table to write, of slides in the cohort (.tsv)"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    samples = read_samples(args.slides, False, lambda path: True, look=False)
    model_dir = args.model_dir or args.run_dir / "model"
    write_slide_pages(
        args.run_dir, model_dir, samples, args.out, args.table, args.matches, args.cohort
    )


if __name__ == "__main__":
    run_command(main)
