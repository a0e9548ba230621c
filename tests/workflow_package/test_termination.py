"""SIGTERM while Snakemake selects jobs, when its main thread holds the lock of the scheduler."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, threading
from snakemake.scheduling.job_scheduler import JobScheduler
from gigatile.workflow.termination import end_on_sigterm

if {fixed}:
    end_on_sigterm()
scheduler = JobScheduler.__new__(JobScheduler)
scheduler._lock, scheduler._open_jobs = threading.Lock(), threading.Semaphore(0)
scheduler._user_kill = None
signal.signal(signal.SIGTERM, scheduler.exit_gracefully)
with scheduler._lock:
    os.kill(os.getpid(), signal.SIGTERM)
assert scheduler._open_jobs.acquire(timeout=20)
print(scheduler._user_kill)
"""


def run(fixed: bool, limit: float) -> str:
    program = [sys.executable, "-c", PROGRAM.format(fixed=fixed)]
    return subprocess.run(program, capture_output=True, text=True, timeout=limit, check=True).stdout


def test_sigterm_ends_the_selection_of_jobs():
    assert run(fixed=True, limit=60) == "graceful\n"


def test_snakemake_still_needs_it():
    """If this fails, a release has fixed the fault: delete the module."""
    with pytest.raises(subprocess.TimeoutExpired):
        run(fixed=False, limit=15)
