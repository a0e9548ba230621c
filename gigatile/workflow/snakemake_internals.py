"""The undocumented names of Snakemake and of its SLURM executor that this package uses.

A release may change them without notice. After an upgrade, check how each name is used, run the
tests in tests/workflow and tests/cluster, and then update `CHECKED_RELEASES`.
"""

import base64
import contextlib
import inspect
import io
import os
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from snakemake.cli import parse_args
from snakemake.common import overwrite_function_params

F = TypeVar("F", bound=Callable[..., Any])

CHECKED_RELEASES = {
    "snakemake": "9.27.1",
    "snakemake-executor-plugin-slurm": "2.8.0",
    "snakemake-executor-plugin-slurm-jobstep": "0.6.1",
    "snakemake-interface-executor-plugins": "9.4.0",
}

# By module. Attributes that exist only in instances count, too.
INTERNAL_NAMES = {
    "snakemake.cli": ("parse_args",),
    "snakemake.common": ("overwrite_function_params",),
    "snakemake.dag": ("DAG.needrun_jobs", "group_into_chunks"),
    "snakemake.executors.local": ("Executor.run_single_job",),
    "snakemake.io": ("ancient", "is_flagged"),
    "snakemake.jobs": (
        *("Job.postprocess", "Job.log_error", "Job.attempt", "Job.restart_times"),
        *("Job.dag", "Job.container_img_url", "Job.register", "Job.shellcmd"),
        *("GroupJob.log_error", "GroupJob.attempt", "GroupJob.jobid", "GroupJob.restart_times"),
    ),
    "snakemake.persistence": (
        *("FileBackupMixin.backup_output", "MetadataRecord", "RECORD_FORMAT_VERSION"),
        *("PersistenceBase._code", "PersistenceBase._conda_env", "PersistenceBase._get_key"),
        *("PersistenceBase._input", "PersistenceBase._log", "PersistenceBase._params"),
        "PersistenceBase._software_stack_hash",
    ),
    "snakemake.persistence.file": (
        *("FilePersistence._metadata_path", "FilePersistence._incomplete_path"),
        *("FilePersistence._record_path", "FilePersistence._io_delete", "FilePersistence._io_read"),
        *("FilePersistence._io_write", "FilePersistence._get_recorded_starttime"),
        *("FilePersistence._write_record", "FilePersistence._mark_incomplete"),
        *("FilePersistence.finished", "FilePersistence.started"),
    ),
    "snakemake.scheduling.job_scheduler": (
        *("JobScheduler.error_callback", "JobScheduler.exit_gracefully"),
    ),
    "snakemake.settings.types": ("ExecMode.DEFAULT", "PersistenceBackend.FILE"),
    "snakemake.workflow": (
        *("Workflow.basedir", "Workflow.current_basedir", "Workflow.dag", "Workflow.dryrun"),
        "Workflow.deployment_settings",
        *("Workflow.is_main_process", "Workflow.main_snakefile", "Workflow.persistence"),
        *("Workflow.resource_settings", "Workflow.scheduler"),
    ),
    "snakemake_executor_plugin_slurm": (
        *("get_job_wildcards", "get_submit_command"),
        *("Executor.__post_init__", "Executor.cancel_jobs", "Executor.check_active_jobs"),
        *("Executor.report_job_error", "Executor.run_job", "Executor.logger"),
        *("Executor.format_job_exec", "Executor.get_python_executable"),
        *("Executor._report_job_error_threadsafe", "Executor._report_job_submission_threadsafe"),
        *("Executor._main_event_loop", "Executor.run_uuid", "Executor.slurm_logdir"),
    ),
    "snakemake_executor_plugin_slurm_jobstep": ("get_cpu_setting",),
    "snakemake_interface_executor_plugins.executors.base": ("SubmittedJobInfo.external_jobid",),
    "snakemake_interface_executor_plugins.registry": ("ExecutorPluginRegistry.get_plugin",),
    "snakemake_interface_executor_plugins.utils": ("format_cli_arg",),
}


def declare_parameters(function: F) -> F:
    """Store the parameters of a function for Snakemake; return the function.

    Otherwise Snakemake inspects the function for every job, which takes a sixth of the time of a
    plan with a job per slide.
    """
    overwrite_function_params(function, inspect.signature(function).parameters)
    return function


def parse_command_line(arguments: Sequence[str]) -> Namespace | None:
    """Return the options of Snakemake's command line and of the profile; None if they are not its.

    They are not if another program uses Snakemake's API.
    """
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return parse_args(list(arguments))[1]
    except SystemExit:
        return None


def is_scheduling(workflow: Any) -> bool:
    """Return whether the plan is complete, so that jobs run now."""
    return workflow.scheduler is not None


def forget_params(workflow: Any) -> None:
    """Let Snakemake evaluate parameters again, instead of recording those of the plan."""
    workflow.persistence._params.cache_clear()


def record_files(output: str) -> tuple[str, str]:
    """Return the files with Snakemake's metadata about an output, and its incomplete mark."""
    name = base64.urlsafe_b64encode(output.encode()).decode()
    length = os.pathconf(os.curdir, "PC_NAME_MAX") - 1
    parts = [name[i : i + length] for i in range(0, len(name), length)]
    path = "/".join([*(f"@{part}" for part in parts[:-1]), parts[-1]])
    return f"{METADATA}/{path}", f"{INCOMPLETE}/{path}"


METADATA, INCOMPLETE, LOCKS = (
    Path(".snakemake", name) for name in ("metadata", "incomplete", "locks")
)
# Of this package: the metadata of jobs that run.
PLANNED = Path(".snakemake/planned")


def is_locked(folder: str) -> bool:
    """Return whether a Snakemake has locked a file below a folder: it is at work, or was killed.

    A lock is a file with a path in each line.
    """
    for lock in LOCKS.glob("*"):
        with contextlib.suppress(FileNotFoundError):
            lines = lock.read_text(encoding="utf-8", errors="replace").splitlines()
            if any(line.startswith(f"{folder}/") for line in lines):
                return True
    return False
