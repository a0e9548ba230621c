#!/usr/bin/env python3
"""Train a segmentation of volumes; run under an MPI launcher, with what train.py says of itself."""

import argparse

from gigatile.errors import run_command
from gigatile.parallel.interruption import catch_signals


def main() -> None:
    # Before all that takes time to import, so that a signal of the first seconds is heard, too.
    catch_signals()
    from gigatile.settings.patches import PatchSettings
    from gigatile.settings.section import parse_section
    from gigatile.settings.volumes import parse_volumes
    from gigatile.training.command_line import add_arguments, train_as_rank, training_settings

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--volumes", required=True, help="the section `volumes` as JSON")
    parser.add_argument("--regions", required=True, help="volumes.regions as JSON")
    parser.add_argument("--patches", required=True, help="the section `patches` as JSON")
    add_arguments(parser)
    args = parser.parse_args()
    volumes = parse_volumes(args.volumes, args.regions)
    patches = parse_section(PatchSettings, args.patches)

    def task():
        from gigatile.training.segmentation import Segmentation

        return Segmentation(volumes, patches)

    train_as_rank(args, training_settings(args), task)


if __name__ == "__main__":
    run_command(main)
