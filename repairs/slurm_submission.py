"""Jobs that SLURM does not take: asked again where that helps, told and ended where it does not.

What is mended in snakemake-executor-plugin-slurm 2.8.0:

- A submission of a group that fails before `sbatch` ends in an AttributeError in a thread, so the
  run waits for ever: `run_job` reads `job.rule.name`, and a group has no rule.
- Of a refused group the reason is lost: a group's `log_error` takes no notice of its message. And
  of a job that was never started the log of an earlier run is shown as that of the failure.
- A controller that does not answer for a moment costs an attempt, as a full queue does. Retries
  follow at once, and each asks for more memory and time.
- A refusal that lasts is retried, too, with more memory.
- After Ctrl-C the jobs that wait for their submission are still submitted, and left.
- A retry may land on the very node that failed it.
- `slurm_extra` of a profile replaces that of the rule, and with it the signal before the time
  limit.
"""

import re
import shlex
import threading
import time
from collections.abc import Callable
from typing import Any

import snakemake_executor_plugin_slurm as plugin
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from gigatile.slurm import SlurmError, ask

# Seconds: before asking again, at first and at most; and in all, before a failure counts as one.
# What timed out may reach SLURM after `sbatch` gave up (MessageTimeout, 10 s by default).
FIRST_WAIT, LONGEST_WAIT, PATIENCE = 30.0, 300.0, 86400.0

# What SLURM says (slurm_errno.c) of what passes: a controller or an accounting that does not
# answer, and limits on the jobs that one may have in the queue at once.
_PASSES = re.compile(
    r"timed out|unable to contact slurm|connection (refused|reset|timed)|communication|"
    r"zero bytes were transmitted|resource temporarily unavailable|temporarily unable|"
    r"unable to connect to database|slurm persistent connection|slurmdbd|too many open files|"
    r"maxsubmitjob|grpsubmitjob|job submit limit|backup controller|in standby mode|"
    r"cannot allocate memory|slurm_persist_conn|transport endpoint|no route to host",
    re.IGNORECASE,
)
# Of a job in one of these states the node is not to blame.
_OWN_FAULT = ("OUT_OF_MEMORY", "TIMEOUT", "CANCELLED", "PREEMPTED")
# The account that the profile has before anybody put in his own.
_PLACEHOLDER = "my-account"


def passes(reason: str) -> bool:
    """Return whether a failure to submit may be gone when it is tried again."""
    # The executor adds its command, whose paths may hold any word.
    reason = reason.split("\n    sbatch call:")[0]
    # One sentence stands for all limits, a queue that is full and a job that is too large; where
    # SLURM names the limit, that decides.
    limits = re.findall(r"\b(?:QOS|Assoc)\w+Limit\b", reason)
    if limits:
        return all("Submit" in limit for limit in limits)
    return _PASSES.search(reason) is not None


def mend_submission() -> None:
    """Mend the executor in this process; a second call does nothing."""
    registered = ExecutorPluginRegistry().get_plugin("slurm")
    if registered.executor is _Executor:
        return
    plugin.get_job_wildcards = _told_apart(plugin.get_job_wildcards)
    plugin.get_submit_command = _with_signal(plugin.get_submit_command)
    registered.executor = _Executor


def _told_apart(wildcards_of: Callable[[Any], str]) -> Callable[[Any], str]:
    """Groups of the same rules have one comment; with their own number they can be looked up."""
    return lambda job: str(job.jobid) if job.is_group() else wildcards_of(job)


def _with_signal(command: Callable[..., str]) -> Callable[..., str]:
    """Add the resource `signal` of a rule to its `sbatch`, whatever else a profile adds."""

    def mended(job: Any, params: dict[str, Any], *args: Any, **options: Any) -> str:
        avoided = getattr(_now, "avoided", None)
        if avoided:
            options["failed_nodes"] = {*options.get("failed_nodes", ()), *avoided}
        line = command(job, params, *args, **options)
        signal = job.resources.get("signal")
        if not signal:
            return line
        theirs = re.search(r"--signal[= ](\S+)", str(job.resources.get("slurm_extra") or ""))
        if theirs is None:
            return f"{line} --signal={shlex.quote(signal)}"
        if theirs[1].split("@")[0] != signal.split("@")[0]:
            raise WorkflowError(
                f"slurm_extra asks for --signal={theirs[1]}, but the rule {job.name} needs "
                f"--signal={signal} to save before its time limit; take --signal out of slurm_extra"
            )
        return line

    return mended


# Of the submission that a thread is at: why it failed, and the nodes that it is to avoid.
_now = threading.local()


class _Executor(plugin.Executor):  # type: ignore[misc]
    def __post_init__(self, *args: Any, **options: Any) -> None:
        self._ended = threading.Event()
        self._avoided: dict[Any, set[str]] = {}
        defaults = self.workflow.resource_settings.default_resources or {}
        account = defaults.get("slurm_account")
        if _PLACEHOLDER in str(getattr(account, "raw", account)):
            raise WorkflowError(
                f'slurm_account is still "{_PLACEHOLDER}": put your account into the profile '
                "(profiles/slurm/config.yaml, default-resources); "
                "`sacctmgr show assoc user=$USER format=account` lists those that are yours"
            )
        super().__post_init__(*args, **options)

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        self._ended.set()
        super().cancel_jobs(active_jobs)

    def run_job(self, job: Any) -> None:
        begun, wait, asked_before = time.monotonic(), FIRST_WAIT, False
        while not self._ended.is_set():
            try:
                if asked_before and self._found(job):
                    return
                reason = self._submit_once(job)
            except SlurmError as error:
                # Whether the last one came through is not known, so there is no other one yet.
                reason = f"{error} (timed out)"
            if reason is None:
                return
            if not passes(reason) or time.monotonic() - begun > PATIENCE:
                self._refuse(job, reason)
                return
            self.logger.warning(
                f"{job.name}: SLURM does not take it now; it is asked again in {wait:g} s: "
                f"{_first_line(reason)}"
            )
            self._ended.wait(wait)
            wait, asked_before = min(2 * wait, LONGEST_WAIT), True

    def _submit_once(self, job: Any) -> str | None:
        """Submit a job; return why it was not taken."""
        avoided = self._avoided.get(job.jobid, set())
        reason = self._submit_avoiding(job, avoided)
        if reason is not None and avoided and not passes(reason):
            # No other node may be left that could do it.
            reason = self._submit_avoiding(job, set())
        return reason

    def _submit_avoiding(self, job: Any, avoided: set[str]) -> str | None:
        _now.reason, _now.avoided, _now.at_work = None, avoided, True
        try:
            super().run_job(job)
        except Exception as error:
            # What went wrong first; the rest is the AttributeError that its handler ends in.
            return _now.reason or str(error.__context__ or error)
        finally:
            _now.avoided, _now.at_work = None, False
        return _now.reason

    def _report_job_error_threadsafe(self, job_info: SubmittedJobInfo, msg: str) -> None:
        if getattr(_now, "at_work", False):
            _now.reason = msg
        else:  # of jobs that are submitted as an array
            self._refuse(job_info.job, msg)

    def _refuse(self, job: Any, reason: str) -> None:
        def refuse() -> None:
            # Not the job's own `log_error`, which shows the log of an earlier run.
            self.logger.error(f"{job.name} was not submitted. {reason}")
            # What was refused is refused again, and more so with more memory.
            job.attempt = job.restart_times + 1
            self.workflow.scheduler.error_callback(job)

        if self._main_event_loop is None:
            refuse()
        else:
            self._main_event_loop.call_soon_threadsafe(refuse)

    def _found(self, job: Any) -> bool:
        """Take a job that SLURM has although `sbatch` failed; return whether there is one.

        Raises:
            SlurmError: SLURM does not answer.
        """
        kind = "group" if job.is_group() else "rule"
        name = plugin.get_job_wildcards(job)
        comment = f"rule_{job.name}_wildcards_{name}" if name else f"rule_{job.name}"
        listed = ask(
            *("squeue", "--me", "--noheader", "--states=all"),
            *(f"--name={self.run_uuid}", "--format=%i\t%k"),
        )
        rows = [line.split("\t", 1) for line in listed.splitlines()]
        with self._taken_lock:
            ids = [number for number, said in rows if said == comment]
            new = sorted(set(ids) - self._taken, key=int)
        if not new:
            return False
        number = new[0]
        log = self.slurm_logdir / f"{kind}_{job.name}" / name / f"{number}.log"
        self.logger.info(
            f"Job {job.jobid} had been submitted with SLURM jobid {number} all the same."
        )
        self._report_job_submission_threadsafe(
            SubmittedJobInfo(job, external_jobid=number, aux={"slurm_logfile": log})
        )
        return True

    # Numbers that SLURM gave to this run's jobs: a retry has the comment of the job that failed.
    _taken_lock = threading.Lock()

    @property
    def _taken(self) -> set[str]:
        return self.__dict__.setdefault("_taken_numbers", set())

    def _report_job_submission_threadsafe(self, job_info: SubmittedJobInfo) -> None:
        with self._taken_lock:
            self._taken.add(str(job_info.external_jobid))
        super()._report_job_submission_threadsafe(job_info)

    def report_job_error(self, job_info: SubmittedJobInfo, msg: Any = None, **options: Any) -> None:
        if job_info.external_jobid is not None:
            self._avoid_node_of(job_info)
        super().report_job_error(job_info, msg=msg, **options)

    def _avoid_node_of(self, job_info: SubmittedJobInfo) -> None:
        """Have the next attempt of a job run elsewhere: its node may be what is broken."""
        try:
            told = ask(
                *("squeue", "--noheader", "--states=all", "--format=%T\t%N"),
                *("--job", str(job_info.external_jobid)),
            )
        except SlurmError:
            return
        state, _, nodes = told.strip().partition("\t")
        # Of several nodes nobody knows which.
        if nodes and state not in _OWN_FAULT and "[" not in nodes and "," not in nodes:
            self._avoided.setdefault(job_info.job.jobid, set()).add(nodes)
            self.logger.warning(f"SLURM-job {job_info.external_jobid} failed on {nodes}.")


def _first_line(reason: str) -> str:
    # The executor's heading, before SLURM's own words in quotes.
    return reason.strip().splitlines()[0].removeprefix("SLURM sbatch failed. ")
