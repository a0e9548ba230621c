"""Draw the loss of a short training with rising learning rates, to choose train.learning_rate.

The shards must be there. The model starts from its initial weights, and nothing of it is kept.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gigatile.command.configuration import add_target, load_with_shards
from gigatile.errors import UserError
from gigatile.files import write_whole
from gigatile.tables import write_table
from gigatile.tasks import find_task, task_part

if TYPE_CHECKING:
    from gigatile.training.rate_range import RateRange


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_target(parser)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("learning_rates.png"),
        help="picture to write (learning_rates.png); the numbers are written next to it, as .tsv",
    )
    parser.add_argument("--steps", type=int, default=100, help="steps of the range (100)")
    parser.add_argument("--lowest", type=float, default=1e-6, help="first learning rate (1e-6)")
    parser.add_argument("--highest", type=float, default=1.0, help="last learning rate (1)")


def run(args: argparse.Namespace) -> None:
    """Write the picture and the table, and print the rates."""
    if not 10 <= args.steps <= 100_000:
        raise UserError(f"--steps: found {args.steps}; must be 10 to 100000")
    if not 0 < args.lowest < args.highest < float("inf"):
        raise UserError("--lowest must be above 0, and --highest above --lowest")
    if args.out.suffix != ".png":
        raise UserError(f"--out: found {args.out}; must be a file .png")
    settings, manifest = load_with_shards(args.target)

    # Imports TensorFlow, which takes seconds.
    from gigatile.training.cores import limit_pools

    cores = settings.train.ranks_per_node * settings.train.cores_per_rank
    limit_pools(cores)

    from gigatile.training.rate_range import range_test
    from gigatile.training.startup import join_ranks

    def report(number: int, rate: float, loss: float) -> None:
        if sys.stderr.isatty():
            end = "\n" if number + 1 == args.steps else ""
            print(f"\rstep {number + 1}: {rate:.1e}, loss {loss:.4f} ", end=end, file=sys.stderr)

    # One process has the cores of all ranks of a node.
    alone = settings.train.model_copy(update={"nodes": 1, "ranks_per_node": 1})
    sections = find_task(settings.task).training(settings)
    task = task_part(settings.task, "training").training_task(sections)
    with join_ranks(cores, settings.train.stall_limit) as ranks:
        tested = range_test(
            task, manifest, alone, ranks, args.steps, (args.lowest, args.highest), report
        )
    if not len(tested.rates):
        raise UserError(f"the loss is not finite at a learning rate of {args.lowest:g}")
    rows = zip(tested.rates.tolist(), tested.losses.tolist(), tested.smooth.tolist(), strict=True)
    write_table(
        args.out.with_suffix(".tsv"),
        ("learning_rate", "loss", "smoothed_loss"),
        ([f"{value:.6g}" for value in row] for row in rows),
    )
    _draw(tested, args.out)
    print(f"the loss falls fastest at a learning rate of {tested.fastest:.1e}")
    if tested.lowest == tested.rates[-1]:
        print(
            f"it still falls at {tested.lowest:.1e}, the last rate; set --highest to a larger one"
        )
    else:
        print(f"it is lowest at {tested.lowest:.1e}; a larger rate is too large")
    print(args.out)


def _draw(tested: "RateRange", out: Path) -> None:
    import numpy as np
    from matplotlib.figure import Figure

    rates, losses = tested.rates, tested.losses
    fastest, lowest = tested.fastest, tested.lowest
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(rates, losses, color="#9ca3af", linewidth=0.8, label="loss of a batch")
    axes.plot(rates, tested.smooth, color="#0072b2", label="moving mean")
    axes.axvline(fastest, color="#009e73", linestyle="--", label=f"falls fastest: {fastest:.1e}")
    axes.axvline(lowest, color="#d55e00", linestyle=":", label=f"lowest: {lowest:.1e}")
    axes.set_xscale("log")
    axes.set_ylim(0, min(losses.max(), 3 * np.median(losses)))
    axes.set_xlabel("learning rate")
    axes.set_ylabel("loss")
    axes.legend()
    with write_whole(out) as path:
        figure.savefig(path, format="png", dpi=120)
