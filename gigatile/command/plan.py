"""Estimate hours, storage and jobs of a run; see docs/plan.md.

What follows `--` goes to scripts/plan.py, for example `-- --tiles-per-slide 2000`.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from gigatile.command.configuration import (
    add_target,
    find_configuration,
    folder_of_paths,
    load,
    project_folder,
)
from gigatile.command.snakemake import environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_target(parser)
    parser.add_argument("--profile", help="profile of the cluster; `slurm`: the project's own")


def run(args: argparse.Namespace) -> None:
    """Call scripts/plan.py in the folder of the configuration."""
    configuration = find_configuration(args.target).absolute()
    load(configuration)
    project = project_folder()
    options = list(args.snakemake)
    if args.profile:
        own = project / "profiles" / args.profile
        options += ["--profile", str(own if own.is_dir() else Path(args.profile).absolute())]
    if configuration != project / "config.yaml":
        options += ["--configfile", str(configuration)]
    command = [sys.executable, str(project / "scripts" / "plan.py"), *options]
    sys.exit(subprocess.call(command, cwd=folder_of_paths(configuration), env=environment()))
