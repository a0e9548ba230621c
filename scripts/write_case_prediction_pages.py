#!/usr/bin/env python3
"""Write the pages of new cases: index.html and a page for each case that the model segmented."""

import argparse

from gigatile.errors import run_command
from gigatile.report.case_predictions import CasePredictionFiles, write_case_prediction_pages
from gigatile.report.command_line import add_arguments, add_cohort_arguments, input_paths

INPUTS = {
    "cases_table": "predictions/cases.tsv",
    "volumes_dir": "predictions/volumes",
    "segmentations_dir": "predictions/segmentations",
    "model_dir": "model",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser, INPUTS, tiles=False)
    add_cohort_arguments(parser)
    args = parser.parse_args()
    files = CasePredictionFiles(**input_paths(args, INPUTS), cohort=args.cohort)
    write_case_prediction_pages(files, args.out, args.title or "New cases", args.matches)


if __name__ == "__main__":
    run_command(main)
