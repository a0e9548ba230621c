"""Run all stages that are missing or out of date, and show their progress.

What follows `--` goes to Snakemake, for example `-- --keep-going`.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console

from gigatile.command.configuration import (
    add_target,
    find_configuration,
    folder_of_paths,
    load,
    project_folder,
)
from gigatile.command.display import display_for
from gigatile.command.progress import Progress, duration
from gigatile.command.snakemake import call_snakemake, error_message, run_snakemake
from gigatile.command.summary import summary_lines
from gigatile.errors import UserError
from gigatile.planning.durations import Durations
from gigatile.settings.whole import Settings

# Options with which Snakemake prints something that its user wants to see.
PRINTING = {"-n", "--dry-run", "--dryrun", "--dag", "--rulegraph", "--filegraph", "--summary", "-S"}
PRINTING |= {"-D", "--detailed-summary", "--lint", "--list", "-l", "--list-rules", "--unlock", "-h"}
PRINTING |= {"--help", "--version", "-v", "--touch", "-t", "--report", "--d3dag"}
CORES = {"--cores", "-c", "--jobs", "-j", "--profile"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_target(parser)
    parser.add_argument(
        "--profile",
        help="profile of Snakemake, for example that of your cluster; `slurm`: the project's own",
    )
    parser.add_argument("--cores", default="all", help="number of cores on this machine (all)")
    parser.add_argument("-n", "--dry-run", action="store_true", help="list what would run")


def run(args: argparse.Namespace) -> None:
    """Run Snakemake with the arguments; exit with its status."""
    configuration = find_configuration(args.target).absolute()
    settings = load(configuration)
    options = snakemake_options(args)
    if args.dry_run:
        from gigatile.command.dry_run import print_dry_run

        print_dry_run(configuration, options)
    elif any(option.partition("=")[0] in PRINTING for option in args.snakemake):
        sys.exit(call_snakemake(configuration, options))
    else:
        predicted = settings.predict.samples or settings.predict.slides
        is_alone = predicted and settings.predict.bundle
        new = folder_of_paths(configuration) / str(predicted) if is_alone else None
        sys.exit(run_workflow(configuration, settings, options, new))


def snakemake_options(args: argparse.Namespace) -> list[str]:
    """Return the options of Snakemake for those of the command."""
    options = list(args.snakemake)
    if args.profile:
        own = project_folder() / "profiles" / args.profile
        options += ["--profile", str(own if own.is_dir() else Path(args.profile).absolute())]
    elif not any(option.partition("=")[0] in CORES for option in options):
        options += ["--cores", str(args.cores)]
    return options


def run_workflow(
    configuration: Path,
    settings: Settings,
    options: Sequence[str],
    new: Path | None = None,
    bundle: Path | None = None,
) -> int:
    """Run Snakemake, show its progress and print a summary; return its exit status.

    Args:
        configuration: the file.
        settings: of the run.
        options: of Snakemake, and targets.
        new: the sheet of the slides or cases to predict; None: the run ends with an evaluation.
        bundle: folder of the bundle, if the run ends with one.

    Raises:
        UserError: Snakemake refuses to run.
    """
    folder = folder_of_paths(configuration)
    os.chdir(folder)  # the paths of the settings, of logs and of tables are relative to it
    log = log_file(folder)
    start = time.monotonic()
    console = Console(stderr=True, highlight=False)
    progress = Progress(Durations(settings).seconds, os.cpu_count() or 1, time.monotonic)
    display = display_for(progress, console)
    with display.show():
        status = run_snakemake(configuration, options, log, display.update)
    killed = f"Snakemake was ended by {signal.Signals(-status).name}" if status < 0 else ""
    is_begun = any(stage.started is not None for stage in progress.stages.values())
    if killed and not is_begun:
        raise UserError(f"{killed}; full log: {log}")
    if status != 0 and not is_begun:
        raise UserError(error_message(log.read_text(encoding="utf-8", errors="replace")))
    for line in warnings_in(log):
        console.print(line, style="yellow", soft_wrap=True)
    if status != 0:
        failed = len({(failure.stage, failure.names) for failure in progress.failures})
        reason = f"{failed or 'no'} job(s) failed"
        if killed:
            reason += f", and {killed}"
        console.print(
            f"stopped after {duration(time.monotonic() - start)}: {reason}. Fix the cause and run "
            f"the same command again. Finished jobs are not repeated.\nfull log: {log}",
            soft_wrap=True,
        )
        return status
    lines = summary_lines(
        settings, progress.counts(), time.monotonic() - start, log, configuration, new, bundle
    )
    print(*lines, sep="\n")
    return status


def log_file(folder: Path) -> Path:
    """Return a new file for the output of Snakemake."""
    logs = folder / ".snakemake" / "log"
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{logs}: {error.strerror}; a run writes its log there") from None
    stamp = datetime.now().strftime("%Y-%m-%dT%H%M%S.%f")
    return logs / f"{stamp}.gigatile.log"


def warnings_in(log: Path) -> list[str]:
    """Return the warnings about sheets and settings in a log, each once."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        return list(dict.fromkeys(line.rstrip() for line in lines if line.startswith("warning: ")))
