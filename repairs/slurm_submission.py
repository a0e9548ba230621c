"""Submission to SLURM: repeated where a failure is temporary, refused with its reason otherwise.

Faults repaired in snakemake-executor-plugin-slurm 2.8.0:

- If submitting a group fails before `sbatch`, the run hangs: `run_job` reads `job.rule.name`, a
  group has no rule, and the AttributeError ends a thread of the pool.
- The reason why a group was refused is not printed, because a group's `log_error` ignores its
  message. For a job that never started, the log of an earlier run is printed instead.
- A short outage of the controller or a full queue costs an attempt. Retries follow at once, and
  each asks for more memory and time.
- A permanent refusal is retried, too, with more memory.
- After Ctrl-C, jobs that wait to be submitted are still submitted, and then left running.
- A retry may run on the node on which the job has just failed.
- A job that SLURM preempted without requeuing it, and a job that SLURM has forgotten, count as
  running, so the run hangs.
- `slurm_extra` of a profile replaces that of the rule, and so removes the signal before the time
  limit.
"""

import asyncio
import re
import shlex
import threading
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import snakemake_executor_plugin_slurm as plugin
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from gigatile.slurm import SlurmError, ask

# Seconds: the first and the longest wait between submissions, and the limit of all waits together.
# SLURM may receive a request after `sbatch` gave up on it (MessageTimeout, 10 s by default).
FIRST_WAIT, LONGEST_WAIT, PATIENCE = 30.0, 300.0, 86400.0

# Seconds between two looks for jobs that will never end. A job that is preempted at two of them in
# succession is not requeued; one that SLURM does not list for `PATIENCE` is forgotten.
LOOK_EVERY = 120.0

# SLURM's messages (slurm_errno.c) for temporary failures: a controller or an accounting service
# that does not answer, and limits on the number of submitted jobs.
_TEMPORARY = re.compile(
    r"timed out|unable to contact slurm|connection (refused|reset|timed)|communication|"
    r"zero bytes were transmitted|resource temporarily unavailable|temporarily unable|"
    r"unable to connect to database|slurm persistent connection|slurmdbd|too many open files|"
    r"maxsubmitjob|grpsubmitjob|job submit limit|backup controller|in standby mode|"
    r"cannot allocate memory|slurm_persist_conn|transport endpoint|no route to host",
    re.IGNORECASE,
)
# States of jobs that would have failed on any node.
_OWN_FAULT = ("OUT_OF_MEMORY", "TIMEOUT", "CANCELLED", "PREEMPTED")
# The executor's message has these before SLURM's own words, and before the command.
_HEADING, _COMMAND = "SLURM sbatch failed. The error message was '", "\n    sbatch call:"
# The account in the profile as it is delivered.
_PLACEHOLDER = "my-account"


def is_temporary(reason: str) -> bool:
    """Return whether a submission that failed may succeed later."""
    # The executor adds its command, and a path in it may contain any word.
    reason = reason.split(_COMMAND)[0]
    # SLURM has one sentence for all limits, for a full queue and for a job that is too large. If it
    # also names the limit, the name decides.
    limits = re.findall(r"\b(?:QOS|Assoc)\w+Limit\b", reason)
    if limits:
        return all("Submit" in limit for limit in limits)
    return _TEMPORARY.search(reason) is not None


def mend_submission() -> None:
    """Repair the executor in this process; a second call does nothing."""
    registered = ExecutorPluginRegistry().get_plugin("slurm")
    if registered.executor is _Executor:
        return
    plugin.get_job_wildcards = _with_id_of_group(plugin.get_job_wildcards)
    plugin.get_submit_command = _with_signal(plugin.get_submit_command)
    registered.executor = _Executor


def _with_id_of_group(wildcards_of: Callable[[Any], str]) -> Callable[[Any], str]:
    """Give each group a comment of its own: those of the same rules have the same one otherwise."""
    return lambda job: str(job.jobid) if job.is_group() else wildcards_of(job)


def _with_signal(command: Callable[..., str]) -> Callable[..., str]:
    """Add the `signal` resource of a rule to its `sbatch`, whatever `slurm_extra` contains."""

    def with_signal(job: Any, params: dict[str, Any], *args: Any, **options: Any) -> str:
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

    return with_signal


# The submission in this thread: the reason for its failure, and the nodes to exclude.
_now = threading.local()


class _Executor(plugin.Executor):  # type: ignore[misc]
    def __post_init__(self, *args: Any, **options: Any) -> None:
        self._ended = threading.Event()
        self._avoided: dict[Any, set[str]] = {}
        # Since when a SLURM job has been preempted ("PREEMPTED") or not listed (None).
        self._lost: dict[str, tuple[str | None, float]] = {}
        self._last_look = time.monotonic()
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

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Yield the jobs that have not ended; report those that never will."""
        lost = await asyncio.to_thread(self._look_for_lost, active_jobs)
        async for job_info in super().check_active_jobs(active_jobs):
            reason = lost.get(str(job_info.external_jobid))
            if reason is None:
                yield job_info
            else:
                self.report_job_error(job_info, msg=reason)

    def _look_for_lost(self, active_jobs: list[SubmittedJobInfo]) -> dict[str, str]:
        """Return messages about the SLURM jobs that will never end."""
        now = time.monotonic()
        if not active_jobs or now - self._last_look < LOOK_EVERY:
            return {}
        self._last_look = now
        try:
            listed = ask("squeue", "--me", "--noheader", "--states=all", "--format=%i\t%T")
        except SlurmError:
            return {}
        states = dict(line.split("\t", 1) for line in listed.splitlines())
        # Tasks of an array are not listed one by one while they are pending.
        numbers = [n for n in (str(one.external_jobid) for one in active_jobs) if "_" not in n]
        before, self._lost, messages = self._lost, {}, {}
        for number in numbers:
            state = states.get(number)
            if state is not None and state != "PREEMPTED":
                continue
            first_state, since = before.get(number, (state, now))
            since = since if first_state == state else now
            self._lost[number] = state, since
            if state == "PREEMPTED" and since < now:
                messages[number] = f"SLURM preempted job {number} and does not requeue it."
            elif state is None and now - since > PATIENCE:
                messages[number] = f"SLURM has not listed job {number} for {PATIENCE / 3600:g} h."
        return messages

    def run_job(self, job: Any) -> None:
        start, wait, is_retry = time.monotonic(), FIRST_WAIT, False
        while not self._ended.is_set():
            try:
                if is_retry and self._found(job):
                    return
                reason = self._submit_once(job)
                temporary = reason is not None and is_temporary(reason)
            except SlurmError as error:
                # The last `sbatch` may have reached SLURM; until that is known, no other is sent.
                reason, temporary = str(error), True
            if reason is None:
                return
            if not temporary or time.monotonic() - start > PATIENCE:
                self._refuse(job, reason)
                return
            self.logger.warning(
                f"{job.name}: SLURM cannot accept the job now; next attempt in {wait:g} s: "
                f"{_words_of_slurm(reason)}"
            )
            self._ended.wait(wait)
            wait, is_retry = min(2 * wait, LONGEST_WAIT), True

    def _submit_once(self, job: Any) -> str | None:
        """Submit a job; return the reason if SLURM refuses it."""
        avoided = self._avoided.get(job.jobid, set())
        reason = self._submit_avoiding(job, avoided)
        if reason is not None and avoided and not is_temporary(reason):
            # Perhaps no other node can run it.
            reason = self._submit_avoiding(job, set())
        return reason

    def _submit_avoiding(self, job: Any, avoided: set[str]) -> str | None:
        _now.reason, _now.avoided, _now.at_work = None, avoided, True
        try:
            super().run_job(job)
        except Exception as error:
            # The first exception; the last one is the AttributeError of its handler.
            return _now.reason or str(error.__context__ or error)
        finally:
            _now.avoided, _now.at_work = None, False
        return _now.reason

    def _report_job_error_threadsafe(self, job_info: SubmittedJobInfo, msg: str) -> None:
        if getattr(_now, "at_work", False):
            _now.reason = msg
        else:  # jobs of an array
            self._refuse(job_info.job, msg)

    def _refuse(self, job: Any, reason: str) -> None:
        def refuse() -> None:
            # The job's own `log_error` prints the log of an earlier run.
            self.logger.error(f"{job.name} was not submitted. {reason}")
            # SLURM would refuse a retry, too, which asks for more memory.
            job.attempt = job.restart_times + 1
            self.workflow.scheduler.error_callback(job)

        if self._main_event_loop is None:
            refuse()
        else:
            self._main_event_loop.call_soon_threadsafe(refuse)

    def _found(self, job: Any) -> bool:
        """Look for a job that SLURM received although `sbatch` failed; return whether it did.

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
            ids = [number for number, its_comment in rows if its_comment == comment]
            new = sorted(set(ids) - self._taken, key=int)
        if not new:
            return False
        number = new[0]
        log = self.slurm_logdir / f"{kind}_{job.name}" / name / f"{number}.log"
        self.logger.info(f"SLURM had received job {job.jobid}: SLURM jobid {number} (log: {log}).")
        self._report_job_submission_threadsafe(
            SubmittedJobInfo(job, external_jobid=number, aux={"slurm_logfile": log})
        )
        return True

    # SLURM job ids of this run. A retry has the same comment as the job that failed.
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
        if msg and job_info.job.is_group():
            self.logger.error(msg)  # `log_error` of a group ignores it
        super().report_job_error(job_info, msg=msg, **options)

    def _avoid_node_of(self, job_info: SubmittedJobInfo) -> None:
        """Exclude the node of a failed job from its next attempt: the node may be at fault."""
        try:
            answer = ask(
                *("squeue", "--noheader", "--states=all", "--format=%T\t%N"),
                *("--job", str(job_info.external_jobid)),
            )
        except SlurmError:
            return
        state, _, nodes = answer.strip().partition("\t")
        # With several nodes, it is unknown which one is at fault.
        if nodes and state not in _OWN_FAULT and "[" not in nodes and "," not in nodes:
            self._avoided.setdefault(job_info.job.jobid, set()).add(nodes)
            self.logger.warning(f"SLURM-job {job_info.external_jobid} failed on {nodes}.")


def _words_of_slurm(reason: str) -> str:
    """Return SLURM's own message in one line, without the executor's heading and command."""
    message = reason.split(_COMMAND)[0].strip()
    if message.startswith(_HEADING):
        message = message.removeprefix(_HEADING).removesuffix("'.")
    return "; ".join(message.splitlines())
