"""Gigatile: from slides or volumes to a trained model and a report."""

import argparse
import sys
from collections.abc import Sequence

from gigatile.command import (
    bundle,
    check,
    compare,
    doctor,
    find_rate,
    init,
    plan,
    pool,
    predict,
    propose,
    report,
    samples,
    serve,
    study,
    verify,
)
from gigatile.command import run as run_workflow
from gigatile.errors import run_command

# The subcommands, in the order of their use.
COMMANDS = {
    "init": init,
    "check": check,
    "plan": plan,
    "run": run_workflow,
    "study": study,
    "propose": propose,
    "samples": samples,
    "find-rate": find_rate,
    "verify": verify,
    "bundle": bundle,
    "predict": predict,
    "serve": serve,
    "report": report,
    "compare": compare,
    "pool": pool,
    "doctor": doctor,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command with arguments; None: those of this process."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    own, options = given, []
    if "--" in given:
        position = given.index("--")
        own, options = given[:position], given[position + 1 :]
    args = parser().parse_args(own)
    args.snakemake = options
    run_command(lambda: COMMANDS[args.command].run(args))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="gigatile", description=__doc__, epilog="gigatile COMMAND --help explains a command."
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        summary, _, _ = (module.__doc__ or "").partition("\n\n")
        sub = commands.add_parser(
            name,
            help=" ".join(summary.split()),
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)
    return top


if __name__ == "__main__":
    main()
