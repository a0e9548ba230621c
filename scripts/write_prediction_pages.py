#!/usr/bin/env python3
"""Write the pages of new slides: index.html and a page for each slide that the model called."""

import argparse

from gigatile.errors import run_command
from gigatile.report import PredictionFiles, write_prediction_pages
from gigatile.report.command_line import add_arguments, add_cohort_arguments, input_paths

INPUTS = {
    "slides_table": "predictions/tiles.tsv",
    "tiles_dir": "predictions/tiles",
    "tile_scores": "predictions/tiles.parquet",
    "slide_scores": "predictions/slides.tsv",
    "model_dir": "model",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser, INPUTS)
    add_cohort_arguments(parser)
    args = parser.parse_args()
    files = PredictionFiles(**input_paths(args, INPUTS), cohort=args.cohort)
    write_prediction_pages(
        files, args.out, args.title or "New slides", args.top_tiles, args.matches
    )


if __name__ == "__main__":
    run_command(main)
