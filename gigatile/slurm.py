"""What is asked of SLURM: which jobs are in its queue, where this one runs, to take it back.

Source of the formats: `man squeue`, OUTPUT FORMAT; `man scontrol`, requeue.
"""

import os
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gigatile.errors import UserError

# Seconds: for one question; between two; and how long none may be answered before that is an error.
ANSWER_LIMIT = 60.0
ASK_EVERY = 10.0
SILENCE_LIMIT = 1800.0

Answer = TypeVar("Answer")


class SlurmError(Exception):
    """SLURM did not answer, or refused; the message is its own."""


@dataclass(frozen=True)
class Job:
    """A job in the queue.

    Attributes:
        number: its id.
        state: RUNNING, PENDING, COMPLETING, ….
        rule: what it does for Snakemake, whose executor writes this into the comment, with the
            rule's wildcards; of a group, its rules.
        nodes: where it runs as SLURM writes it, `n[1-2]`, or why it waits.
        folder: where it was submitted.
    """

    number: str
    state: str
    rule: str
    nodes: str
    folder: Path


def ask(*command: str) -> str:
    """Return what one of SLURM's commands prints.

    Raises:
        SlurmError: it failed, or did not answer.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_LIMIT)
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]}: no answer within {ANSWER_LIMIT:g} s") from None
    if done.returncode:
        raise SlurmError(done.stderr.strip() or f"{command[0]}: status {done.returncode}")
    return done.stdout


def patiently(ask: Callable[[], Answer]) -> Answer:
    """Return what SLURM answers; a controller that is away for a while is asked again.

    Raises:
        UserError: there was no answer for half an hour.
    """
    begun = time.monotonic()
    while True:
        try:
            return ask()
        except SlurmError as error:
            if time.monotonic() - begun > SILENCE_LIMIT:
                raise UserError(
                    f"SLURM has not answered for {SILENCE_LIMIT / 60:g} minutes: {error}"
                ) from None
        time.sleep(ASK_EVERY)


def _jobs(*which: str) -> list[Job]:
    """Return those of the jobs asked for that a Snakemake submitted."""
    jobs = []
    for line in ask("squeue", *which, "--noheader", "--format=%i\t%T\t%k\t%R\t%Z").splitlines():
        number, state, comment, nodes, home = line.split("\t", 4)
        if comment.startswith("rule_"):
            rule = comment.removeprefix("rule_").replace("_wildcards_", " ")
            jobs.append(Job(number, state, rule, nodes, Path(home).resolve()))
    return jobs


def own_job() -> Job | None:
    """Return the job in which this process runs; None where it is not one that Snakemake submitted.

    So a Snakemake that runs as a whole inside somebody's job, with its ranks, is not in a job of
    its own: nothing here would give that job back.

    Raises:
        SlurmError: the queue cannot be read.
    """
    # SLURM's own variables tell more, but Snakemake's executor leaves only this one.
    number = os.environ.get("SLURM_JOB_ID")
    return next(iter(_jobs("--job", number)), None) if number else None


def await_jobs_of(folder: Path, tell: Callable[[str], None]) -> None:
    """Return when no job that a Snakemake in `folder` submitted is left; say what is waited for.

    Raises:
        UserError: SLURM gave no answer for half an hour.
    """
    wanted, shown = folder.resolve(), None
    while jobs := [job for job in patiently(lambda: _jobs("--me")) if job.folder == wanted]:
        if jobs != shown:
            shown = jobs
            tell(_told(jobs, folder))
        time.sleep(ASK_EVERY)


def _told(jobs: list[Job], folder: Path) -> str:
    lines = [f"  {job.number}  {job.state}  {job.rule}  {job.nodes}" for job in jobs[:20]]
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
    return ask("squeue", "--noheader", "--states=all", "--job", job, "--format=%T").strip()


def restarts_of(job: str) -> int:
    """Return how often SLURM has started a job again.

    Raises:
        SlurmError: the controller does not tell.
    """
    found = re.search(r"\bRestarts=(\d+)", ask("scontrol", "show", "job", job))
    if found is None:
        raise SlurmError(f"scontrol show job {job}: nothing about restarts")
    return int(found[1])


def requeue(job: str) -> None:
    """Give a job back to the queue; SLURM then ends its present start.

    Raises:
        SlurmError: SLURM does not take it back.
    """
    ask("scontrol", "requeue", job)
