#!/usr/bin/env python3
"""Train a classifier of tiles; run under an MPI launcher, one process per GPU or per few cores.

It goes on from the furthest segment of the same training in its folder, and ends with --epochs
complete: <epochs>.npz, .keras and .json are written.

Status 75 means: stopped by SIGTERM or SIGUSR2, or another process is gone. The same command goes on
from where it was.
"""

import argparse

from gigatile.errors import run_command
from gigatile.parallel.interruption import catch_signals


def main() -> None:
    # Before all that takes time to import, so that a signal of the first seconds is heard, too.
    catch_signals()
    from gigatile.settings.section import parse_section
    from gigatile.settings.tiles import TileSettings
    from gigatile.training.command_line import add_arguments, train_as_rank, training_settings

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiles", required=True, help="the section `tiles` as JSON")
    add_arguments(parser)
    args = parser.parse_args()
    tiles = parse_section(TileSettings, args.tiles)

    def task():
        from gigatile.training.classification import Classification

        return Classification(tiles)

    train_as_rank(args, training_settings(args), task)


if __name__ == "__main__":
    run_command(main)
