#!/usr/bin/env python3
"""Train a model on shards; run under an MPI launcher, one process per GPU or core."""

import argparse
from pathlib import Path

from gigatile.errors import run_command
from gigatile.settings import TileSettings, TrainSettings, parse_section


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", type=Path, required=True, help="of the shards")
    parser.add_argument("--settings", required=True, help="the section `train` as JSON")
    parser.add_argument("--tiles", required=True, help="the section `tiles` as JSON")
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder of its own")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    args = parser.parse_args()
    settings = parse_section(TrainSettings, args.settings)
    tiles = parse_section(TileSettings, args.tiles)

    from gigatile.errors import UserError
    from gigatile.training.loop import train
    from gigatile.training.ranks import join

    ranks = join()
    if ranks.size != settings.ranks:
        raise UserError(
            f"started as {ranks.size} process(es), but train.ranks is {settings.ranks}; "
            "the launcher and the settings must agree"
        )
    train(
        args.manifest,
        settings,
        tiles,
        args.checkpoints,
        args.out,
        ranks,
        tell=lambda line: print(line, flush=True),
    )


if __name__ == "__main__":
    run_command(main)
