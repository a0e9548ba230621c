"""How Snakemake was called, and what this process will do."""

import os
import shutil
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from snakemake.settings.types import PersistenceBackend

from gigatile.errors import UserError
from gigatile.slurm import await_jobs_of
from gigatile.workflow.snakemake_internals import is_locked, is_scheduling, parse_command_line

# Options with which Snakemake runs no jobs.
_READ_ONLY = """
    archive cleanup_metadata cleanup_shadow conda_cleanup_envs conda_create_envs_only
    container_cleanup_images containerize d3dag dag delete_all_output delete_temp_output
    detailed_summary dryrun filegraph generate_unit_tests lint list_changes list_conda_envs
    list_input_changes list_params_changes list_rules list_target_rules list_untracked
    print_compilation report rulegraph summary touch unlock
"""
READ_ONLY_OPTIONS = tuple(_READ_ONLY.split())


class Invocation:
    """A call of Snakemake.

    Snakemake runs each job in a new process, which reads the Snakefile again. Only the process that
    the user started is the main process.

    Args:
        workflow: the global `workflow` of a Snakefile.
        arguments: the command line, without the name of the program.
    """

    def __init__(self, workflow: Any, arguments: Sequence[str]) -> None:
        self.workflow = workflow
        self.is_main_process: bool = workflow.is_main_process
        self._arguments = arguments

    @cached_property
    def options(self) -> Namespace | None:
        """The options of the command line; None if this is not the main process."""
        return parse_command_line(self._arguments) if self.is_main_process else None

    @cached_property
    def executor(self) -> str | None:
        """The name of the executor; None if this process does not run the jobs of a plan."""
        if self.options is None or any(getattr(self.options, name) for name in READ_ONLY_OPTIONS):
            return None
        return self.options.executor or "local"

    @property
    def is_planning(self) -> bool:
        """Whether Snakemake is deciding now which jobs to run."""
        return self.is_main_process and not is_scheduling(self.workflow)

    @cached_property
    def needs_metadata(self) -> bool:
        """Whether Snakemake will decide by its metadata which jobs to run."""
        options = self.options
        if options is None or options.forceall or set(options.targets) == {"verify"}:
            return False
        if any(getattr(options, name) for name in READ_ONLY_OPTIONS if name != "dryrun"):
            return False
        # With the other backend, the metadata are in a database.
        return options.persistence_backend == PersistenceBackend.FILE

    def await_earlier_jobs(self, run: str) -> None:
        """Wait for the SLURM jobs that a killed Snakemake left, if this process will submit jobs.

        Otherwise they would run twice at the same time. Call it before the plan, which takes their
        outputs into account.

        Args:
            run: the folder of the run, results/<run>.
        """
        if is_locked(run):
            return  # Snakemake will refuse to run and say what to do
        if shutil.which("squeue") is not None and self.executor == "slurm":
            log = partial(print, file=sys.stderr, flush=True)
            await_jobs_of(Path.cwd(), Path(run).name, log)

    def check_writable(self, *folders: str) -> None:
        """Check that jobs can write to folders.

        Raises:
            UserError: a folder is not writable, and this process will run jobs.
        """
        if self.executor is None:
            return
        for folder in map(Path, folders):
            if folder.is_dir() and not os.access(folder, os.W_OK):
                raise UserError(
                    f"{folder.absolute()}: not writable, and every run writes there, `verify` too; "
                    "call Snakemake in a copy of the project"
                )
