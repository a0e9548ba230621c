"""Query SLURM's queue, and requeue a job.

Source of the formats: `man squeue`, OUTPUT FORMAT; `man scontrol`, requeue.
"""

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gigatile.errors import UserError

# Seconds: limit of one command, pause between two tries, and limit of all tries.
ANSWER_LIMIT = 60.0
RETRY_EVERY = 10.0
SILENCE_LIMIT = 1800.0

# Between a job's rule and its run, in the comment of a SLURM job.
_IN_RUN = " in "

Answer = TypeVar("Answer")


class SlurmError(Exception):
    """SLURM did not answer, or refused; the message is SLURM's."""


@dataclass(frozen=True)
class Job:
    """A job in the queue.

    Attributes:
        number: its id.
        state: RUNNING, PENDING, COMPLETING, ….
        rule: Snakemake's rule and wildcards, which the executor writes into the comment; for a
            group, its rules.
        run: name of the run; empty: it makes no file of a run.
        nodes: its nodes in SLURM's notation, `n[1-2]`, or why it is pending.
        folder: where it was submitted.
    """

    number: str
    state: str
    rule: str
    run: str
    nodes: str
    folder: Path


def ask(*command: str) -> str:
    """Run a command of SLURM and return its output.

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


def retry(query: Callable[[], Answer]) -> Answer:
    """Return the result of `query`; retry while SLURM's controller does not answer.

    Raises:
        UserError: there was no answer for half an hour.
    """
    begun = time.monotonic()
    while True:
        try:
            return query()
        except SlurmError as error:
            if time.monotonic() - begun > SILENCE_LIMIT:
                raise UserError(
                    f"SLURM has not answered for {SILENCE_LIMIT / 60:g} minutes: {error}"
                ) from None
        time.sleep(RETRY_EVERY)


def _jobs(*options: str) -> list[Job]:
    """Return the jobs that `squeue` lists and that Snakemake submitted."""
    jobs = []
    for line in ask("squeue", *options, "--noheader", "--format=%i\t%T\t%k\t%R\t%Z").splitlines():
        number, state, comment, nodes, folder = line.split("\t", 4)
        if comment.startswith("rule_"):
            rule, _, run = comment.removeprefix("rule_").partition(_IN_RUN)
            rule = rule.replace("_wildcards_", " ")
            jobs.append(Job(number, state, rule, run, nodes, Path(folder).resolve()))
    return jobs


def comment_of(comment: str, outputs: Iterable[str]) -> str:
    """Return the comment of a job with the name of its run, which `results/<run>/` has."""
    parts = (Path(output).parts for output in outputs)
    runs = (names[1] for names in parts if names[:1] == ("results",) and len(names) > 2)
    run = next(runs, "")
    return f"{comment}{_IN_RUN}{run}" if run else comment


def own_job() -> Job | None:
    """Return the job in which this process runs, if Snakemake submitted it; otherwise None.

    So if Snakemake itself runs inside a job, that job is never requeued.

    Raises:
        SlurmError: the queue cannot be read.
    """
    # Snakemake's executor removes the other variables of SLURM.
    number = os.environ.get("SLURM_JOB_ID")
    return next(iter(_jobs("--job", number)), None) if number else None


def await_jobs_of(folder: Path, run: str | None, log: Callable[[str], None]) -> None:
    """Wait until no job that Snakemake submitted from `folder` is left; log the jobs.

    Args:
        run: wait for the jobs of this run only, as others may be at work side by side; None: for
            the jobs of all runs.

    Raises:
        UserError: SLURM gave no answer for half an hour.
    """
    submitted_from, logged = folder.resolve(), None
    while jobs := [
        job
        for job in retry(lambda: _jobs("--me"))
        if job.folder == submitted_from and (run is None or job.run in ("", run))
    ]:
        if jobs != logged:
            logged = jobs
            log(_waiting_for(jobs, folder))
        time.sleep(RETRY_EVERY)


def _waiting_for(jobs: list[Job], folder: Path) -> str:
    lines = [f"  {job.number}  {job.state}  {job.rule}  {job.nodes}" for job in jobs[:20]]
    if len(jobs) > 20:
        lines.append(f"  … and {len(jobs) - 20} more")
    numbers = " ".join(job.number for job in jobs)
    return "\n".join(
        [
            f"waiting for {len(jobs)} SLURM job(s) of an earlier run in {folder}:",
            *lines,
            f"to cancel them instead: scancel {numbers}",
        ]
    )


def state_of(job: str) -> str:
    """Return a job's state: RUNNING, COMPLETING, CANCELLED, ….

    Raises:
        SlurmError: the queue cannot be read.
    """
    return ask("squeue", "--noheader", "--states=all", "--job", job, "--format=%T").strip()


def restarts_of(job: str) -> int:
    """Return how often SLURM has restarted a job.

    Raises:
        SlurmError: the controller does not answer.
    """
    match = re.search(r"\bRestarts=(\d+)", ask("scontrol", "show", "job", job))
    if match is None:
        raise SlurmError(f"scontrol show job {job}: no field Restarts")
    return int(match[1])


def requeue(job: str) -> None:
    """Requeue a job; SLURM then ends its current start.

    Raises:
        SlurmError: SLURM refuses.
    """
    ask("scontrol", "requeue", job)
