"""Compare every byte of the results with the sheet, the settings and the code.

What follows `--` goes to Snakemake.
"""

import argparse
import sys
from pathlib import Path

from gigatile.command.configuration import add_target, find_configuration, folder_of_paths, load
from gigatile.command.run import log_file
from gigatile.command.snakemake import error_message, predict_options, run_snakemake
from gigatile.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_target(parser)
    parser.add_argument(
        "samples",
        nargs="?",
        type=Path,
        help="sheet of new slides or cases that were predicted: check their predictions, too",
    )


def run(args: argparse.Namespace) -> None:
    """Run the target `verify`; print its result."""
    configuration = find_configuration(args.target).absolute()
    settings = load(configuration)
    options = ["verify", "--cores", "all"]
    if args.samples:
        options += predict_options(configuration, settings, args.samples)
    result = folder_of_paths(configuration) / "results" / settings.run / "logs" / "verify.log"
    result.unlink(missing_ok=True)
    log = log_file(folder_of_paths(configuration))
    status = run_snakemake(configuration, [*options, *args.snakemake], log, lambda event: None)
    if not result.is_file():
        raise UserError(error_message(log.read_text(encoding="utf-8", errors="replace")))
    text = result.read_text(encoding="utf-8").strip()
    print(text, file=sys.stderr if status else sys.stdout)
    if "left over  predictions" in text and not args.samples:
        print(
            "To check predictions, too, name their sheet: gigatile verify DIR SHEET",
            file=sys.stderr,
        )
    sys.exit(status)
