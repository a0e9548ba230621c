"""Predict new slides or cases with the model of a run, which is trained first if it is missing.

What follows `--` goes to Snakemake.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from gigatile.command.configuration import find_configuration, folder_of_paths, load
from gigatile.command.run import run_workflow, snakemake_options
from gigatile.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "target", type=Path, help="folder with config.yaml, or a configuration file"
    )
    parser.add_argument("samples", type=Path, help="sheet of the new slides or cases")
    parser.add_argument("--profile", help="profile of Snakemake; `slurm`: the project's own")
    parser.add_argument("--cores", default="all", help="number of cores on this machine (all)")


def run(args: argparse.Namespace) -> None:
    """Run the stages of prediction; exit with Snakemake's status."""
    configuration = find_configuration(args.target).absolute()
    settings = load(configuration)
    if not args.samples.is_file():
        raise UserError(f"{args.samples}: no such sheet")
    sheet = os.path.relpath(args.samples.absolute(), folder_of_paths(configuration))
    pages = f"results/{settings.run}/predictions/pages/index.html"
    setting = json.dumps({"samples": sheet})
    options = [pages, *snakemake_options(args), "--config", f"predict={setting}"]
    sys.exit(run_workflow(configuration, settings, options, headline=False))
