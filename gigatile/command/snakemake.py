"""Calls of Snakemake with the project's Snakefile, from any folder."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigatile.bundle.external import is_external
from gigatile.cohort.sheet_reading import columns_of
from gigatile.command.configuration import folder_of_paths, project_folder
from gigatile.errors import UserError
from gigatile.settings.whole import Settings
from gigatile.tasks import find_task

# `WorkflowError in file "/…/cohort.smk", line 31:`, the message, and the lines of the Snakefile.
ERROR = re.compile(
    r"^\w+(?:Error|Exception)(?: in (?:rule \w+, )?file \S.*?)?:?\n"
    r"(.*?)(?=^  File |^\S+Error|\Z)",
    re.MULTILINE | re.DOTALL,
)
# The same for an exception in an input function.
INPUT_ERROR = re.compile(
    r"^InputFunctionException in .*\nError:\n +\w+:\s*(.*)\n(?=Wildcards:)", re.M
)
# A plugin that Snakemake finds by its name, which begins with `snakemake_logger_plugin_`.
PLUGINS = Path(__file__).resolve().parents[1] / "workflow" / "plugins"
TAIL = 15
LOCKED = (
    "{folder}: another run is using this folder, or one was killed. If no other run uses it, "
    "unlock it: gigatile run DIR -- --unlock"
)


def command_line(configuration: Path, options: Sequence[str]) -> list[str]:
    """Return the command line of Snakemake for a run.

    Args:
        configuration: the file. Snakemake works in its folder: there are `results/`, and paths in
            the configuration are relative to it.
        options: further options, and targets.
    """
    if len([option for option in options if option.partition("=")[0] in ("--config", "-C")]) > 1:
        raise UserError(
            "--config can be used once only, and this command uses it for the sheet: write other "
            "settings into the configuration"
        )
    project = project_folder()
    # After the options: a target that followed --configfile would be taken for another file.
    arguments = [
        "--snakefile",
        str(project / "Snakefile"),
        "--directory",
        str(folder_of_paths(configuration)),
    ]
    if configuration != project / "config.yaml":
        arguments += ["--configfile", str(configuration)]
    # -P: no file of the current folder, such as random.py, is imported in place of a library.
    return [sys.executable, "-P", "-m", "snakemake", *options, *arguments]


@dataclass(frozen=True)
class NewData:
    """What a run predicts for a sheet of new data.

    Attributes:
        setting: key of the section `predict` for the sheet.
        unit: of its rows.
        table, page: of the predictions, in the folder `predictions` of the run.
    """

    setting: str
    unit: str
    table: str
    page: str


def new_data(settings: Settings, sheet: Path) -> NewData:
    """Return what a run predicts for a sheet: its columns say what is in its rows.

    Raises:
        UserError: there is no such sheet.
    """
    if not sheet.is_file():
        raise UserError(f"{sheet}: no such sheet")
    task = find_task(settings.task)
    columns = columns_of(sheet)
    if task.detects_on_slides and "slide" in columns and task.unit not in columns:
        return NewData("slides", "slide", "slides.tsv", "slide_pages/index.html")
    return NewData("samples", task.unit, task.table, "pages/index.html")


def external_page(settings: Settings, sheet: Path) -> list[str]:
    """Return the page of an external validation, in the folder `predictions`.

    There is none without labels or references, and none of whole slides with instances.

    Raises:
        UserError: lists all faults of the sheet.
    """
    task = find_task(settings.task)
    if not task.truth or new_data(settings, sheet).setting != "samples":
        return []
    members = task.read_sheet(sheet, settings, False, lambda path: True, False)
    return ["external/index.html"] if is_external(settings, members) else []


def predict_options(configuration: Path, settings: Settings, sheet: Path) -> list[str]:
    """Return the options with which a run predicts the slides, cases or images of a sheet.

    Raises:
        UserError: there is no such sheet.
    """
    setting = new_data(settings, sheet).setting
    path = os.path.relpath(sheet.absolute(), folder_of_paths(configuration))
    return ["--config", f"predict={json.dumps({setting: path})}"]


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a Snakemake that finds this library and its plugins."""
    paths = [str(PLUGINS), str(Path(__file__).resolve().parents[2])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | more


def run_snakemake(
    configuration: Path,
    options: Sequence[str],
    log: Path,
    on_event: Callable[[Mapping[str, Any]], None],
    on_start: Callable[[subprocess.Popen[bytes]], None] = lambda process: None,
) -> int:
    """Run Snakemake, with its output in a file; return its exit status.

    An interruption with Ctrl-C reaches Snakemake, too: wait until it has ended its jobs. SIGTERM is
    passed on.

    Args:
        configuration: of the run.
        options: of Snakemake.
        log: the file for its output.
        on_event: called with each event that the logger plugin writes. If it raises an exception,
            Snakemake is ended.
        on_start: called with the process.
    """
    receiving, sending = os.pipe()
    with log.open("wb") as output, os.fdopen(receiving, encoding="utf-8") as events:
        process = subprocess.Popen(
            command_line(configuration, [*options, "--logger", "gigatile"]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(GIGATILE_EVENTS=str(sending)),
            pass_fds=[sending],
        )
        on_start(process)
        os.close(sending)
        previous = signal.getsignal(signal.SIGTERM)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            while True:
                try:
                    for line in events:
                        on_event(json.loads(line))
                    return process.wait()
                except KeyboardInterrupt:
                    on_event({"event": "interrupted"})
        except BaseException:
            process.terminate()
            process.wait()
            raise
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, previous)


def call_snakemake(configuration: Path, options: Sequence[str]) -> int:
    """Run Snakemake with its own output on the terminal; return its exit status."""
    return subprocess.call(command_line(configuration, options), env=environment())


def query_snakemake(configuration: Path, options: Sequence[str]) -> str:
    """Return what Snakemake prints.

    Raises:
        UserError: it fails; the message is its reason.
    """
    done = subprocess.run(
        command_line(configuration, options),
        capture_output=True,
        text=True,
        env=environment(),
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        raise UserError(error_message(done.stdout + done.stderr))
    return done.stdout


def error_message(output: str) -> str:
    """Return the error in the output of Snakemake, without the lines of the Snakefile."""
    messages = [match[1].strip() for match in ERROR.finditer(output)]
    messages += [match[1] for match in INPUT_ERROR.finditer(output)]
    if messages and messages[-1]:
        message = messages[-1].removeprefix("Error: ")
        if "cannot be locked" in message and len(message.splitlines()) > 1:
            return LOCKED.format(folder=message.splitlines()[1])
        return message
    lines = [line for line in output.splitlines() if line.strip()]
    usage = [line for line in lines if ": error: " in line]
    return usage[-1].partition(": error: ")[2] if usage else "\n".join(lines[-TAIL:])
