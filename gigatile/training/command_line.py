"""The options of scripts/train.py, and what a rank does before and after training."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gigatile.errors import UserError
from gigatile.settings.section import parse_section
from gigatile.settings.train import TrainSettings
from gigatile.software import import_tensorflow
from gigatile.training.cores import limit_pools

if TYPE_CHECKING:
    from gigatile.training.task import TrainingTask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of all tasks."""
    default = {name: field.default for name, field in TrainSettings.model_fields.items()}
    parser.add_argument("--manifest", type=Path, required=True, help="manifest of the shards")
    parser.add_argument("--settings", required=True, help="the section `train` as JSON")
    parser.add_argument(
        "--checkpoints", type=Path, required=True, help="folder for checkpoints of this segment"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the segments")
    parser.add_argument("--events", type=Path, help="folder for TensorBoard")
    parser.add_argument(
        "--validated",
        type=Path,
        nargs="*",
        default=[],
        help="results of the earlier segments, for train.patience",
    )
    parser.add_argument(
        "--code", default="", help="hash of the code; checkpoints of other code are skipped"
    )
    parser.add_argument("--ranks", type=int, required=True, help="number of processes launched")
    for option, key, kind, text in (
        ("--epochs", "epochs", int, "complete epochs at the end"),
        ("--cores", "cores_per_rank", int, "cores per process"),
        ("--stall-limit", "stall_limit", int, "abort after this many seconds without a step"),
        ("--save-minutes", "save_minutes", float, "minutes between two checkpoints"),
        ("--cache-gb", "cache_gb", float, "GB of shards in a store to keep in TMPDIR"),
    ):
        text += f" (default: {default[key]:g})"
        parser.add_argument(option, dest=key, type=kind, default=default[key], help=text)
    parser.add_argument(
        "--validate-steps", type=int, help="validate also after each so many steps (default: no)"
    )
    parser.add_argument(
        "--limit-batches", type=int, help="per epoch, to try a configuration (default: all)"
    )


def training_settings(args: argparse.Namespace) -> TrainSettings:
    """Return the section `train` from the options."""
    given = ("epochs", "cores_per_rank", "stall_limit", "save_minutes", "cache_gb")
    optional = {key: getattr(args, key) for key in ("limit_batches", "validate_steps")}
    return parse_section(
        TrainSettings,
        args.settings,
        nodes=1,
        ranks_per_node=args.ranks,
        **{key: getattr(args, key) for key in given},
        **{key: value for key, value in optional.items() if value is not None},
    )


def train_as_rank(
    args: argparse.Namespace, settings: TrainSettings, task: Callable[[], "TrainingTask"]
) -> None:
    """Train as one of the launched processes.

    Args:
        args: the options.
        settings: from `training_settings`.
        task: returns the task; called when TensorFlow may be imported.

    Raises:
        UserError: the number of processes is not that of the settings.
    """
    limit_pools(settings.cores_per_rank)
    import_tensorflow()

    from gigatile.training.early_stopping import ended_early
    from gigatile.training.loop import train
    from gigatile.training.segments import Segment
    from gigatile.training.startup import join_ranks

    with join_ranks(settings.cores_per_rank, settings.stall_limit) as ranks:
        if ranks.size != settings.ranks:
            raise UserError(
                f"the launcher started {ranks.size} process(es), but train.nodes x "
                f"train.ranks_per_node is {settings.ranks}; they must be equal"
            )
        segment = Segment(args.out, settings.epochs)
        if ended_early(args.validated, segment, args.checkpoints, settings, ranks, _log):
            return
        train(
            args.manifest,
            settings,
            task(),
            args.checkpoints,
            args.out,
            ranks,
            log=_log,
            events=args.events,
            code=args.code,
        )


def _log(line: str) -> None:
    print(line, flush=True)
