"""Options that commands have for every task, and the settings that they take as JSON."""

import argparse
import json
from typing import Any

from gigatile.errors import UserError
from gigatile.tasks import TASKS


def add_task(parser: argparse.ArgumentParser) -> str | None:
    """Add the option `--task` and return its value, so that the task can add its own options."""
    early = argparse.ArgumentParser(add_help=False)
    for command in (early, parser):
        command.add_argument(
            "--task",
            choices=TASKS,
            required=command is parser,
            help="name of the task; with --help, also show the options of the task",
        )
    return early.parse_known_args()[0].task


def parse_settings(option: str, text: str) -> dict[str, Any]:
    """Parse sections of the settings from JSON.

    Raises:
        UserError: the text is not a JSON object.
    """
    try:
        sections = json.loads(text)
    except ValueError as error:
        raise UserError(f"{option}: not valid JSON ({error})") from None
    if not isinstance(sections, dict):
        raise UserError(f"{option}: found {text}; must be an object of sections of the settings")
    return sections


def merge_settings(sections: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return sections of the settings together with more keys of them."""
    names = [*sections, *(name for name in more if name not in sections)]
    return {name: {**sections.get(name, {}), **more.get(name, {})} for name in names}


def add_split(parser: argparse.ArgumentParser) -> None:
    """Add the option `--split` to scripts/evaluate.py."""
    parser.add_argument(
        "--split",
        choices=("test", "valid"),
        default="test",
        help="the split to score; only test gets metrics (default: test)",
    )
