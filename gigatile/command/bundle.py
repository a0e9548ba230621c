"""Write the model of a run with all that prediction needs into one folder; train it if missing.

Without --out, the bundle is results/<run>/model/bundle/. What follows `--` goes to Snakemake.
"""

import argparse
import sys
from pathlib import Path

from gigatile.bundle.contents import open_bundle
from gigatile.command.configuration import add_target, find_configuration, folder_of_paths, load
from gigatile.command.run import run_workflow, snakemake_options
from gigatile.errors import UserError
from gigatile.tasks import find_task


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_target(parser)
    parser.add_argument("--out", type=Path, help="also copy the bundle to this new folder")
    parser.add_argument("--name", help="name of the model in the copy (that of the run)")
    parser.add_argument("--version", type=int, help="version of the model in the copy (1)")
    parser.add_argument(
        "--without-images",
        action="store_true",
        help="leave the hashes of the cohort's images out of the copy",
    )
    parser.add_argument("--profile", help="profile of Snakemake; `slurm`: the project's own")
    parser.add_argument("--cores", default="all", help="number of cores on this machine (all)")


def run(args: argparse.Namespace) -> None:
    """Run the stages of the bundle; exit with Snakemake's status."""
    of_copy = args.name is not None or args.version is not None or args.without_images
    if not args.out and of_copy:
        raise UserError("--name, --version and --without-images need --out, a folder for the copy")
    configuration = find_configuration(args.target).absolute()
    out = args.out and args.out.absolute()
    settings = load(configuration)
    if settings.predict.bundle:
        raise UserError(
            f"{configuration}: predicts with {settings.predict.bundle}, already a bundle"
        )
    if not find_task(settings.task).predicts:
        raise UserError(
            f"{configuration}: task: {settings.task} cannot predict, so it has no bundle"
        )
    target = f"results/{settings.run}/model/bundle"
    folder = folder_of_paths(configuration) / target
    options = [target, *snakemake_options(args)]
    status = run_workflow(configuration, settings, options, bundle=out or folder)
    if status != 0:
        sys.exit(status)
    bundle = open_bundle(folder)
    if out:
        from gigatile.bundle.copying import copy_bundle

        bundle = copy_bundle(bundle, out, args.name, args.version, not args.without_images)
    size = sum(path.stat().st_size for path in bundle.folder.rglob("*") if path.is_file())
    print(f"bundle    {bundle.folder} ({size / 1e6:.1f} MB)")
    for name, export in bundle.manifest.exports.items():
        if export.missing:
            print(f"no {name}: {export.missing}")
