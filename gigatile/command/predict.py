"""Predict new slides, cases or images with the model of a run; train it first if it is missing.

What follows `--` goes to Snakemake.
"""

import argparse
import sys
from pathlib import Path

from gigatile.command.configuration import find_configuration, load
from gigatile.command.run import run_workflow, snakemake_options
from gigatile.command.snakemake import new_data, predict_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "target", type=Path, help="folder with config.yaml, or a configuration file"
    )
    parser.add_argument("samples", type=Path, help="sheet of the new slides, cases or images")
    parser.add_argument("--profile", help="profile of Snakemake; `slurm`: the project's own")
    parser.add_argument("--cores", default="all", help="number of cores on this machine (all)")


def run(args: argparse.Namespace) -> None:
    """Run the stages of prediction; exit with Snakemake's status."""
    configuration = find_configuration(args.target).absolute()
    settings = load(configuration)
    new = args.samples.absolute()
    pages = f"results/{settings.run}/predictions/{new_data(settings, new).page}"
    wanted = predict_options(configuration, settings, new)
    options = [pages, *snakemake_options(args), *wanted]
    sys.exit(run_workflow(configuration, settings, options, new))
