"""The arguments of the commands that write reports."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from gigatile.errors import UserError


def add_arguments(
    parser: argparse.ArgumentParser,
    inputs: Mapping[str, str],
    options: Mapping[str, tuple[int, str]],
) -> None:
    """Add --run-dir, an option for each input and for the pages, --title and --out.

    Args:
        inputs: their default places in the run's folder, by name.
        options: default and help of each option of the pages, by name.
    """
    parser.add_argument("--run-dir", type=Path, help="results of a run, which has all inputs")
    for name, path in inputs.items():
        parser.add_argument(_option(name), type=Path, help=f"instead of RUN_DIR/{path}")
    for name, (default, text) in options.items():
        parser.add_argument(_option(name), type=int, default=default, help=f"{text} (%(default)s)")
    parser.add_argument("--title", help="heading of the first page")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")


def input_paths(args: argparse.Namespace, inputs: Mapping[str, str]) -> dict[str, Path]:
    """Return the path of each input.

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
