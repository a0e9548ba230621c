"""The arguments that the commands of reports share: each input by itself, or all by the run."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from gigatile.errors import UserError


def add_arguments(
    parser: argparse.ArgumentParser, inputs: Mapping[str, str], tiles: bool = True
) -> None:
    """Add --run-dir, an option for each input, --title, --out and, of tiles, --top-tiles.

    Args:
        inputs: from an input's name to its place in the run's folder.
        tiles: whether the pages show tiles.
    """
    parser.add_argument("--run-dir", type=Path, help="a run's results, where each input is found")
    for name, place in inputs.items():
        parser.add_argument(_option(name), type=Path, help=f"instead of RUN_DIR/{place}")
    parser.add_argument("--title", help="heading of the first page")
    if tiles:
        parser.add_argument(
            "--top-tiles", type=int, default=8, help="tiles shown per class (%(default)s)"
        )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")


def add_cohort_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --cohort and --matches, for predictions."""
    parser.add_argument(
        "--cohort",
        type=Path,
        metavar="RUN_DIR",
        help="results of the run that trained the model: name what is in its cohort",
    )
    parser.add_argument("--matches", type=Path, help="table to write: what is in the cohort")


def input_paths(args: argparse.Namespace, inputs: Mapping[str, str]) -> dict[str, Path]:
    """Return where each input lies.

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
