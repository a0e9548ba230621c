"""Open the report of a run in the browser; without a browser, print its path."""

import argparse
import os
import webbrowser

from gigatile.command.configuration import add_target, find_configuration, folder_of_paths, load
from gigatile.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_target(parser)
    parser.add_argument("--path", action="store_true", help="only print the path of the report")


def run(args: argparse.Namespace) -> None:
    """Open the report, and print its path."""
    configuration = find_configuration(args.target).absolute()
    page = (
        folder_of_paths(configuration)
        / "results"
        / load(configuration).run
        / "report"
        / "index.html"
    )
    if not page.is_file():
        raise UserError(f"{page}: no report yet; `gigatile run {configuration}` makes it")
    print(page)
    # Without a display, `webbrowser` would start a text browser, such as lynx, in the terminal.
    if not args.path and any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))):
        webbrowser.open(page.as_uri())
