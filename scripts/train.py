#!/usr/bin/env python3
"""Train a model on shards; run under an MPI launcher, one process per GPU or per few cores.

It goes on from the furthest segment of the same training in its folder, and ends with --epochs
complete: <epochs>.npz, .keras and .json are written.

Status 75 means: stopped by SIGTERM or SIGUSR2, or another process is gone. The same command goes on
from where it was.
"""

import argparse
from pathlib import Path

from gigatile.errors import UserError, run_command
from gigatile.parallel.interruption import catch_signals
from gigatile.software import import_less
from gigatile.training.cores import limit_pools


def main() -> None:
    # Before all that takes time to import, so that a signal of the first seconds is heard, too.
    catch_signals()
    from gigatile.settings.section import parse_section
    from gigatile.settings.tiles import TileSettings
    from gigatile.settings.train import TrainSettings

    default = {name: field.default for name, field in TrainSettings.model_fields.items()}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manifest", type=Path, required=True, help="of the shards")
    parser.add_argument("--settings", required=True, help="the section `train` as JSON")
    parser.add_argument("--tiles", required=True, help="the section `tiles` as JSON")
    parser.add_argument("--checkpoints", type=Path, required=True, help="folder of its own")
    parser.add_argument("--out", type=Path, required=True, help="folder of the segments")
    parser.add_argument("--events", type=Path, help="folder for TensorBoard")
    parser.add_argument("--code", default="", help="what state of other code is passed over")
    parser.add_argument("--ranks", type=int, required=True, help="processes launched, all in all")
    for option, key, kind, text in (
        ("--epochs", "epochs", int, "complete at the end"),
        ("--cores", "cores_per_rank", int, "cores of each process"),
        ("--stall-limit", "stall_limit", int, "seconds without a step after which it ends"),
        ("--save-minutes", "save_minutes", float, "between two checkpoints at most"),
    ):
        text += f" (default: {default[key]:g})"
        parser.add_argument(option, dest=key, type=kind, default=default[key], help=text)
    parser.add_argument(
        "--limit-batches", type=int, help="of each epoch, to try a configuration (default: all)"
    )
    args = parser.parse_args()
    given = ("epochs", "cores_per_rank", "stall_limit", "save_minutes")
    limit = {} if args.limit_batches is None else {"limit_batches": args.limit_batches}
    settings = parse_section(
        TrainSettings,
        args.settings,
        nodes=1,
        ranks_per_node=args.ranks,
        **{key: getattr(args, key) for key in given},
        **limit,
    )
    tiles = parse_section(TileSettings, args.tiles)
    limit_pools(settings.cores_per_rank)
    import_less()

    from gigatile.training.joining import join
    from gigatile.training.loop import train

    with join(settings.cores_per_rank, settings.stall_limit) as ranks:
        if ranks.size != settings.ranks:
            raise UserError(
                f"started as {ranks.size} process(es), but train.nodes x train.ranks_per_node is "
                f"{settings.ranks}; the launcher and the settings must agree"
            )
        train(
            args.manifest,
            settings,
            tiles,
            args.checkpoints,
            args.out,
            ranks,
            tell=lambda line: print(line, flush=True),
            events=args.events,
            code=args.code,
        )


if __name__ == "__main__":
    run_command(main)
