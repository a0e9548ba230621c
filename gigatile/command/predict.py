"""Predict new slides, cases or images: with the model of a run, a bundle, or an ensemble.

With a run, train its model first if it is missing. What follows `--` goes to Snakemake.
"""

import argparse
import sys
from pathlib import Path

from gigatile.bundle.contents import ENSEMBLE, is_bundle, open_bundle
from gigatile.command.bundle_run import prepare_run
from gigatile.command.configuration import find_configuration, load
from gigatile.command.run import run_workflow, snakemake_options
from gigatile.command.snakemake import external_page, new_data, predict_options
from gigatile.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "target",
        type=Path,
        help="folder with config.yaml, a configuration file, or the folder of a bundle or ensemble",
    )
    parser.add_argument(
        "samples",
        type=Path,
        nargs="+",
        help="sheet of the new slides, cases or images; with a bundle, also slides or images",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="with a bundle: folder for the results (MODEL-SHEET in the current folder)",
    )
    parser.add_argument(
        "--encoder",
        type=Path,
        help="with the bundle of a model for embeddings: the file of its encoder",
    )
    parser.add_argument("--profile", help="profile of Snakemake; `slurm`: the project's own")
    parser.add_argument("--cores", default="all", help="number of cores on this machine (all)")


def run(args: argparse.Namespace) -> None:
    """Run the stages of prediction; exit with Snakemake's status."""
    if (args.target / ENSEMBLE).is_file():
        from gigatile.command.ensemble_run import predict_with_ensemble

        sys.exit(predict_with_ensemble(args))
    wanted: list[str] = []
    if is_bundle(args.target):
        configuration, new = prepare_run(
            open_bundle(args.target), args.samples, args.out, args.encoder
        )
        settings = load(configuration)
    else:
        for name in ("out", "encoder"):
            if getattr(args, name):
                raise UserError(f"--{name}: only with a bundle; {args.target} is none")
        if len(args.samples) > 1:
            raise UserError(f"{args.samples[1]}: name one sheet; files are for bundles only")
        configuration = find_configuration(args.target).absolute()
        settings = load(configuration)
        new = args.samples[0].absolute()
        wanted = predict_options(configuration, settings, new)
    pages = [new_data(settings, new).page, *external_page(settings, new)]
    targets = [f"results/{settings.run}/predictions/{page}" for page in pages]
    options = [*targets, *snakemake_options(args), *wanted]
    sys.exit(run_workflow(configuration, settings, options, new))
