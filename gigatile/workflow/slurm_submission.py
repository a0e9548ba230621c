"""Submission to SLURM: retry temporary failures, report the reason of permanent ones.

This module works around faults of snakemake-executor-plugin-slurm 2.8.0. Delete it when a release
fixes them; docs/slurm-executor-report.md describes them to its maintainers:

- If submitting a group fails before `sbatch`, the run hangs: `run_job` reads `job.rule.name`, a
  group has no rule, and the AttributeError ends a thread of the pool.
- The reason why SLURM refused a group is not printed, because `log_error` of a group ignores its
  message. For a job that never started, the log of an earlier run is printed instead.
- A short outage of the controller or a full queue counts as a failed attempt. Retries follow
  immediately, and each requests more memory and time.
- A permanent refusal is retried, too, with more memory.
- After Ctrl-C, waiting jobs are still submitted, and keep running.
- A retry may run on the node on which the job has just failed.
- A job that SLURM preempted without requeuing it, and a job that SLURM no longer lists, count as
  running, so the run hangs.
- `slurm_extra` of a profile replaces that of the rule, which removes the signal before the time
  limit.
- A job starts Snakemake once more for each job of its group, each in a job step. Here, `srun`
  starts one Snakemake, which runs the jobs of the group itself.
"""

import asyncio
import re
import shlex
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import snakemake_executor_plugin_slurm as plugin
import snakemake_executor_plugin_slurm_jobstep as jobstep
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry
from snakemake_interface_executor_plugins.utils import format_cli_arg

from gigatile.slurm import SlurmError, ask, comment_of

# Seconds: the first and the longest wait before another `sbatch`, and when to stop trying. SLURM
# may receive a request after `sbatch` gave up on it (MessageTimeout, 10 s by default).
FIRST_WAIT, MAX_WAIT, RETRY_LIMIT = 30.0, 300.0, 86400.0

# Seconds between checks for lost jobs. A job that is preempted at two checks in succession is not
# requeued; a job that SLURM does not list for `RETRY_LIMIT` is forgotten.
CHECK_INTERVAL = 120.0

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
# States of jobs whose node is not to blame.
_NOT_THE_NODE = ("OUT_OF_MEMORY", "TIMEOUT", "CANCELLED", "PREEMPTED")
# The executor writes these before SLURM's message and before the command.
_HEADING, _COMMAND = "SLURM sbatch failed. The error message was '", "\n    sbatch call:"
# With these options, the executor's Snakemake starts another one for each job of a group.
_JOBSTEP = "--executor slurm-jobstep --jobs 1"
_ALL_CORES = format_cli_arg("--cores", "all")
# Resources for which the executor chooses options of `srun` within the job.
_OF_JOBSTEP = ("mpi", "gpu", "gpus", "nvidia_gpu", "cpus_per_gpu")
# The account in the profile that comes with Gigatile.
_PLACEHOLDER = "my-account"


def is_temporary(reason: str) -> bool:
    """Return whether a submission that failed may succeed later."""
    # Ignore the command that the executor adds: its paths may contain any word.
    reason = reason.split(_COMMAND)[0]
    # SLURM has one message for a full queue and for a job that exceeds a limit. They differ in
    # the name of the limit, if there is one.
    limits = re.findall(r"\b(?:QOS|Assoc)\w+Limit\b", reason)
    if limits:
        return all("Submit" in limit for limit in limits)
    return _TEMPORARY.search(reason) is not None


def fix_submission() -> None:
    """Replace the executor in this process; a second call does nothing."""
    registered = ExecutorPluginRegistry().get_plugin("slurm")
    if registered.executor is _Executor:
        return
    plugin.get_job_wildcards = _with_group_id(plugin.get_job_wildcards)
    plugin.get_submit_command = _with_run_and_signal(plugin.get_submit_command)
    registered.executor = _Executor


def _with_group_id(wildcards_of: Callable[[Any], str]) -> Callable[[Any], str]:
    """Make the comment of each group unique; groups of the same rules share one otherwise."""
    return lambda job: str(job.jobid) if job.is_group() else wildcards_of(job)


def _with_run_and_signal(command: Callable[..., str]) -> Callable[..., str]:
    """Add the run to the comment of a `sbatch`, and the `signal` resource of its rule.

    The signal is added whatever `slurm_extra` contains.
    """

    def with_run_and_signal(job: Any, params: dict[str, Any], *args: Any, **options: Any) -> str:
        avoided = getattr(_current, "avoided", None)
        if avoided:
            options["failed_nodes"] = {*options.get("failed_nodes", ()), *avoided}
        comment = comment_of(params["comment_str"], _outputs_of(job))
        line = command(job, {**params, "comment_str": comment}, *args, **options)
        signal = job.resources.get("signal")
        if not signal:
            return line
        extra = re.search(r"--signal[= ](\S+)", str(job.resources.get("slurm_extra") or ""))
        if extra is None:
            return f"{line} --signal={shlex.quote(signal)}"
        if extra[1].split("@")[0] != signal.split("@")[0]:
            raise WorkflowError(
                f"slurm_extra asks for --signal={extra[1]}, but the rule {job.name} needs "
                f"--signal={signal} to save before its time limit; take --signal out of slurm_extra"
            )
        return line

    return with_run_and_signal


def _outputs_of(job: Any) -> Iterator[str]:
    """Yield the outputs of a job, or of the jobs of a group."""
    for each in job.jobs if job.is_group() else [job]:
        yield from map(str, each.output)


# The submission of this thread: the reason of its failure, and the nodes to exclude.
_current = threading.local()


class _Executor(plugin.Executor):
    def __post_init__(self, *args: Any, **options: Any) -> None:
        self._cancelled = threading.Event()
        self._avoided: dict[Any, set[str]] = {}
        # By SLURM job: its state, "PREEMPTED" or None (not listed), and since when.
        self._lost: dict[str, tuple[str | None, float]] = {}
        self._last_check = time.monotonic()
        defaults = self.workflow.resource_settings.default_resources or {}
        account = defaults.get("slurm_account")
        if _PLACEHOLDER in str(getattr(account, "raw", account)):
            raise WorkflowError(
                f'slurm_account is still "{_PLACEHOLDER}": put your account into the profile '
                "(profiles/slurm/config.yaml, default-resources); "
                "`sacctmgr show assoc user=$USER format=account` lists your accounts"
            )
        super().__post_init__(*args, **options)

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        self._cancelled.set()
        super().cancel_jobs(active_jobs)

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Yield the jobs that are still active; report lost jobs as failed."""
        lost = await asyncio.to_thread(self._find_lost, active_jobs)
        async for job_info in super().check_active_jobs(active_jobs):
            reason = lost.get(str(job_info.external_jobid))
            if reason is None:
                yield job_info
            else:
                self.report_job_error(job_info, msg=reason)

    def _find_lost(self, active_jobs: list[SubmittedJobInfo]) -> dict[str, str]:
        """Return messages by SLURM job about jobs that will never end."""
        now = time.monotonic()
        if not active_jobs or now - self._last_check < CHECK_INTERVAL:
            return {}
        self._last_check = now
        try:
            listed = ask("squeue", "--me", "--noheader", "--states=all", "--format=%i\t%T")
        except SlurmError:
            return {}
        states = dict(line.split("\t", 1) for line in listed.splitlines())
        # Pending tasks of an array are not listed individually.
        numbers = [n for n in (str(job.external_jobid) for job in active_jobs) if "_" not in n]
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
            elif state is None and now - since > RETRY_LIMIT:
                messages[number] = (
                    f"SLURM has not listed job {number} for {RETRY_LIMIT / 3600:g} h."
                )
        return messages

    def format_job_exec(self, job: Any) -> str:
        """Return the command of a job: without MPI, a single Snakemake in a single job step."""
        command: str = super().format_job_exec(job)
        settings = self.workflow.executor_settings
        if (
            any(job.resources.get(name) is not None for name in _OF_JOBSTEP)
            or settings.pass_command_as_script
            or settings.array_jobs
        ):
            return command
        python = self.get_python_executable()
        start = f"{python} {shlex.quote(f'{self.workflow.basedir}/scripts/start_step.py')}"
        options = f"-n1 --nodes=1 --cpu-bind=q {jobstep.get_cpu_setting(job, False)}"
        python = f"{python} -m snakemake"
        for old, new in (
            (python, f"{start} {options} {python}"),
            (_JOBSTEP, "--executor local"),
            # The cores of the job, not of its node.
            (_ALL_CORES, format_cli_arg("--cores", job.threads)),
        ):
            assert command.count(old) == 1, (old, command)
            command = command.replace(old, new)
        return command

    def run_job(self, job: Any) -> None:
        start, wait, is_retry = time.monotonic(), FIRST_WAIT, False
        while not self._cancelled.is_set():
            try:
                if is_retry and self._was_received(job):
                    return
                reason = self._submit_once(job)
                temporary = reason is not None and is_temporary(reason)
            except SlurmError as error:
                # The last `sbatch` may have reached SLURM: send no other one before that is known.
                reason, temporary = str(error), True
            if reason is None:
                return
            if not temporary or time.monotonic() - start > RETRY_LIMIT:
                self._refuse(job, reason)
                return
            self.logger.warning(
                f"{job.name}: SLURM cannot accept the job now; next attempt in {wait:g} s: "
                f"{_slurm_message(reason)}"
            )
            self._cancelled.wait(wait)
            wait, is_retry = min(2 * wait, MAX_WAIT), True

    def _submit_once(self, job: Any) -> str | None:
        """Submit a job; return the reason if SLURM refuses it."""
        avoided = self._avoided.get(job.jobid, set())
        reason = self._submit_avoiding(job, avoided)
        if reason is not None and avoided and not is_temporary(reason):
            # Perhaps no other node can run the job.
            reason = self._submit_avoiding(job, set())
        return reason

    def _submit_avoiding(self, job: Any, avoided: set[str]) -> str | None:
        _current.reason, _current.avoided, _current.is_submitting = None, avoided, True
        try:
            super().run_job(job)
        except Exception as error:
            # The original exception: the last one is an AttributeError of the handler.
            return _current.reason or str(error.__context__ or error)
        finally:
            _current.avoided, _current.is_submitting = None, False
        return _current.reason

    def _report_job_error_threadsafe(self, job_info: SubmittedJobInfo, msg: str) -> None:
        if getattr(_current, "is_submitting", False):
            _current.reason = msg
        else:  # a job of an array
            self._refuse(job_info.job, msg)

    def _refuse(self, job: Any, reason: str) -> None:
        def refuse() -> None:
            # The job's own `log_error` prints the log of an earlier run.
            self.logger.error(f"{job.name} was not submitted. {reason}")
            # SLURM would also refuse a retry, which requests more memory.
            job.attempt = job.restart_times + 1
            self.workflow.scheduler.error_callback(job)

        if self._main_event_loop is None:
            refuse()
        else:
            self._main_event_loop.call_soon_threadsafe(refuse)

    def _was_received(self, job: Any) -> bool:
        """Return whether SLURM received a job although `sbatch` failed; then report its submission.

        Raises:
            SlurmError: SLURM does not answer.
        """
        kind = "group" if job.is_group() else "rule"
        name = plugin.get_job_wildcards(job)
        comment = f"rule_{job.name}_wildcards_{name}" if name else f"rule_{job.name}"
        comment = comment_of(comment, _outputs_of(job))
        listed = ask(
            *("squeue", "--me", "--noheader", "--states=all"),
            *(f"--name={self.run_uuid}", "--format=%i\t%k"),
        )
        rows = [line.split("\t", 1) for line in listed.splitlines()]
        with self._reported_lock:
            ids = [number for number, job_comment in rows if job_comment == comment]
            new = sorted(set(ids) - self._reported, key=int)
        if not new:
            return False
        number = new[0]
        log = self.slurm_logdir / f"{kind}_{job.name}" / name / f"{number}.log"
        self.logger.info(f"SLURM had received job {job.jobid}: SLURM jobid {number} (log: {log}).")
        self._report_job_submission_threadsafe(
            SubmittedJobInfo(job, external_jobid=number, aux={"slurm_logfile": log})
        )
        return True

    # Reported SLURM jobs of this run. A retry has the same comment as the failed job.
    _reported_lock = threading.Lock()

    @property
    def _reported(self) -> set[str]:
        return self.__dict__.setdefault("_reported_numbers", set())

    def _report_job_submission_threadsafe(self, job_info: SubmittedJobInfo) -> None:
        with self._reported_lock:
            self._reported.add(str(job_info.external_jobid))
        super()._report_job_submission_threadsafe(job_info)

    def report_job_error(self, job_info: SubmittedJobInfo, msg: Any = None, **options: Any) -> None:
        if job_info.external_jobid is not None:
            self._avoid_node_of(job_info)
        if msg and job_info.job.is_group():
            self.logger.error(msg)  # `log_error` of a group ignores it
        super().report_job_error(job_info, msg=msg, **options)

    def _avoid_node_of(self, job_info: SubmittedJobInfo) -> None:
        """Exclude the node of a failed job from its next attempt: the node may be the cause."""
        try:
            answer = ask(
                *("squeue", "--noheader", "--states=all", "--format=%T\t%N"),
                *("--job", str(job_info.external_jobid)),
            )
        except SlurmError:
            return
        state, _, nodes = answer.strip().partition("\t")
        # With several nodes, it is unknown which one is the cause.
        if nodes and state not in _NOT_THE_NODE and "[" not in nodes and "," not in nodes:
            self._avoided.setdefault(job_info.job.jobid, set()).add(nodes)
            self.logger.warning(f"SLURM-job {job_info.external_jobid} failed on {nodes}.")


def _slurm_message(reason: str) -> str:
    """Return SLURM's message in one line, without the heading and command of the executor."""
    message = reason.split(_COMMAND)[0].strip()
    if message.startswith(_HEADING):
        message = message.removeprefix(_HEADING).removesuffix("'.")
    return "; ".join(message.splitlines())
