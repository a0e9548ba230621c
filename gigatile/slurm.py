"""What is asked of SLURM: which jobs are in its queue, on which nodes one runs, to take one back.

Source of the formats: `man squeue`, OUTPUT FORMAT; `man scontrol`, requeue.
"""

import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gigatile.errors import UserError

# Seconds: for one question; between two; and how long none may be answered before that is an error.
ANSWER_LIMIT = 60.0
ASK_EVERY = 10.0
SILENCE_LIMIT = 1800.0


class SlurmError(Exception):
    """SLURM did not answer, or refused; the message is its own."""


@dataclass(frozen=True)
class Job:
    """A job in the queue.

    Attributes:
        number: its id.
        state: RUNNING, PENDING, COMPLETING, ….
        work: what it does; Snakemake's executor writes `rule_` and the rule's name.
        nodes: where it runs, or why it waits.
    """

    number: str
    state: str
    work: str
    nodes: str


def _ask(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_LIMIT)
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]}: no answer within {ANSWER_LIMIT:g} s") from None
    if done.returncode:
        raise SlurmError(done.stderr.strip() or f"{command[0]}: status {done.returncode}")
    return done.stdout


def jobs_of(folder: Path) -> list[Job]:
    """Return this user's jobs that a Snakemake in `folder` submitted and that have not ended.

    Raises:
        SlurmError: the queue cannot be read.
    """
    wanted = folder.resolve()
    jobs = []
    for line in _ask("squeue", "--me", "--noheader", "--format=%i\t%T\t%k\t%R\t%Z").splitlines():
        number, state, comment, nodes, home = line.split("\t", 4)
        if comment.startswith("rule_") and Path(home).resolve() == wanted:
            jobs.append(Job(number, state, comment.removeprefix("rule_"), nodes))
    return jobs


def await_jobs_of(folder: Path, tell: Callable[[str], None]) -> None:
    """Return when no job that a Snakemake in `folder` submitted is left; say what is waited for.

    Raises:
        UserError: SLURM gave no answer for half an hour.
    """
    answered, told = time.monotonic(), None
    while True:
        try:
            jobs = jobs_of(folder)
        except SlurmError as error:
            if time.monotonic() - answered > SILENCE_LIMIT:
                raise UserError(
                    f"SLURM has not answered for {SILENCE_LIMIT / 60:g} minutes: {error}"
                ) from None
        else:
            answered = time.monotonic()
            if not jobs:
                return
            if jobs != told:
                told = jobs
                tell(_told(jobs, folder))
        time.sleep(ASK_EVERY)


def _told(jobs: list[Job], folder: Path) -> str:
    lines = [f"  {job.number}  {job.state}  {job.work}  {job.nodes}" for job in jobs[:20]]
    if len(jobs) > 20:
        lines.append(f"  … and {len(jobs) - 20} more")
    numbers = " ".join(job.number for job in jobs)
    return "\n".join(
        [
            f"an earlier run in {folder} left {len(jobs)} job(s) with SLURM; their results are "
            "waited for:",
            *lines,
            f"to give them up instead: scancel {numbers}",
        ]
    )


def state_of(job: str) -> str:
    """Return a job's state: RUNNING, COMPLETING, CANCELLED, ….

    Raises:
        SlurmError: the queue cannot be read.
    """
    return _ask("squeue", "--noheader", "--states=all", "--job", job, "--format=%T").strip()


def nodes_of(job: str) -> str:
    """Return the nodes of a running job as SLURM writes them, `n[1-2]`.

    Raises:
        SlurmError: the queue cannot be read.
    """
    return _ask("squeue", "--noheader", "--job", job, "--format=%N").strip()


def restarts_of(job: str) -> int:
    """Return how often SLURM has started a job again.

    Raises:
        SlurmError: the controller does not tell.
    """
    found = re.search(r"\bRestarts=(\d+)", _ask("scontrol", "show", "job", job))
    if found is None:
        raise SlurmError(f"scontrol show job {job}: nothing about restarts")
    return int(found[1])


def requeue(job: str) -> None:
    """Give a job back to the queue; SLURM then ends its present start.

    Raises:
        SlurmError: SLURM does not take it back.
    """
    _ask("scontrol", "requeue", job)
