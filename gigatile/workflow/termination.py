"""SIGTERM ends Snakemake, also while it selects the next jobs."""

import threading
from typing import Any

from snakemake.scheduling.job_scheduler import JobScheduler

_exit_gracefully = JobScheduler.exit_gracefully


def end_on_sigterm() -> None:
    """Let a thread do what Snakemake's handler of SIGTERM does.

    The handler takes a lock. Python runs it in the main thread, which holds this lock while it
    selects jobs: Snakemake would wait for itself forever.
    """
    JobScheduler.exit_gracefully = _exit_in_thread


def _exit_in_thread(scheduler: JobScheduler, *args: Any) -> None:
    threading.Thread(target=_exit_gracefully, args=(scheduler,), daemon=True).start()
