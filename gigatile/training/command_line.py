"""What the commands that train have in common, whatever the task."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gigatile.errors import UserError
from gigatile.settings.section import parse_section
from gigatile.settings.train import TrainSettings
from gigatile.software import import_less
from gigatile.training.cores import limit_pools

if TYPE_CHECKING:
    from gigatile.training.task import Task


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of every training."""
    default = {name: field.default for name, field in TrainSettings.model_fields.items()}
    parser.add_argument("--manifest", type=Path, required=True, help="of the shards")
    parser.add_argument("--settings", required=True, help="the section `train` as JSON")
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


def training_settings(args: argparse.Namespace) -> TrainSettings:
    """Return the settings of a training from its options."""
    given = ("epochs", "cores_per_rank", "stall_limit", "save_minutes")
    limit = {} if args.limit_batches is None else {"limit_batches": args.limit_batches}
    return parse_section(
        TrainSettings,
        args.settings,
        nodes=1,
        ranks_per_node=args.ranks,
        **{key: getattr(args, key) for key in given},
        **limit,
    )


def train_as_rank(
    args: argparse.Namespace, settings: TrainSettings, task: Callable[[], "Task"]
) -> None:
    """Train as one of the processes that were launched; `task` is called when TensorFlow may load.

    Raises:
        UserError: the launcher has started another number of processes than the settings say.
    """
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
            task(),
            args.checkpoints,
            args.out,
            ranks,
            tell=lambda line: print(line, flush=True),
            events=args.events,
            code=args.code,
        )
