"""The arguments of the commands that write reports."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from gigatile.errors import UserError

# The inputs of all tasks: their options, and what they are.
INPUTS = {
    "table": "table of the slides or cases",
    "splits": "splits.json",
    "shards": "manifest of the shards",
    "records_dir": "folder of records and states",
    "results_dir": "folder of the predictions",
    "model_dir": "folder of the model",
    "evaluation_dir": "folder of the evaluation",
}


def add_arguments(parser: argparse.ArgumentParser, inputs: tuple[str, ...]) -> None:
    """Add --run-dir, an option for each input, --title, --out and --top-tiles."""
    parser.add_argument(
        "--run-dir", type=Path, help="results of a run, with the inputs in their default places"
    )
    for name in inputs:
        parser.add_argument(
            _option(name), type=Path, help=f"{INPUTS[name]}, if it is not in RUN_DIR"
        )
    parser.add_argument("--title", help="heading of the first page")
    parser.add_argument(
        "--top-tiles", type=int, default=8, help="tiles shown per class of a slide (%(default)s)"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")


def input_paths(args: argparse.Namespace, inputs: Mapping[str, str]) -> dict[str, Path]:
    """Return the path of each input.

    Args:
        inputs: their default places in the run's folder.

    Raises:
        UserError: an input is given neither by its option nor by --run-dir.
    """
    given = {name: getattr(args, name) for name in inputs}
    missing = [_option(name) for name, path in given.items() if path is None]
    if missing and args.run_dir is None:
        raise UserError(f"give --run-dir, or {', '.join(missing)}")
    return {name: path or args.run_dir / inputs[name] for name, path in given.items()}


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
