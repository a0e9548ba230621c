"""Start the ranks of a stage, with `mpirun` on a laptop or `srun` on a cluster.

Under SLURM, this layer, and no other, restarts a training that stopped early. If a rank receives a
signal (before a preemption or the end of the time limit), waits too long for another rank, or is
lost with its node, the exit status says so. Then the job is requeued under its own number, and its
next start resumes from the latest checkpoint. To Snakemake the job is pending. A user error or a
bug fails the job. A stage without checkpoints would start from the beginning; Snakemake retries it.

Source of the variables: `man srun`, INPUT ENVIRONMENT VARIABLES; `man scontrol`, requeue.
"""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gigatile import slurm
from gigatile.errors import START_AGAIN, UserError
from gigatile.files import named_in_errors, read_json, write_json
from gigatile.parallel import progress
from gigatile.parallel.interruption import EXIT_LINE
from gigatile.parallel.memory import oom_kills
from gigatile.training.checkpoints import checkpoints_by_time

# Exit statuses of a command that a restart would not change.
FINAL = (0, 1, 2)
# SLURM's line, in the output of the ranks, about a rank that was killed because of its memory.
OUT_OF_MEMORY = re.compile(r"^(?:srun|slurmstepd): error: .*(?:Out Of Memory|oom[-_ ]kill)", re.I)
# The launchers of Open MPI and MPICH. On SIGTERM, that of Open MPI 5.0.11 kills the ranks, drops
# their remaining output, prints nothing, and exits with status 1, as after a bug.
MPIRUN = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
# Always printed if a rank or mpirun itself fails with status 1: Python's traceback, or the rule
# above and below a message of mpirun.
FAILED = re.compile(r"Traceback \(most recent call last\):|[-=]{60,}$")
# The job fails after this many starts in a row without a new checkpoint.
MAX_FRUITLESS = 3
# Seconds that a launcher has to end all ranks after the first one exited.
EXIT_LIMIT = 30.0
# Seconds that SLURM has to end this start of a job after it requeued the job.
REQUEUE_LIMIT = 300.0
# The signal on which the ranks save and exit. `srun` and `mpirun` forward it; on SIGTERM they
# end the ranks at once.
STOP = signal.SIGUSR2


@dataclass(frozen=True)
class Layout:
    """The number of nodes and ranks.

    Attributes:
        nodes: number of nodes.
        ranks_per_node: number of ranks on each node.
        cores: number of cores of each rank.
    """

    nodes: int
    ranks_per_node: int
    cores: int

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.nodes * self.ranks_per_node


def launch(
    launcher: str, layout: Layout, command: Sequence[str], log: Path, checkpoints: Path | None
) -> int:
    """Run a command on all ranks, print and log its output, and return the exit status.

    Args:
        launcher: the program that starts ranks, with options: `mpirun`, `srun --mpi=pmix`, ….
        layout: the number of nodes and ranks.
        command: the command of each rank.
        log: the log file, with the output of all ranks and all starts of the job.
        checkpoints: the folder of a training's checkpoints, which show its progress. Records of
            earlier starts are kept there. None: a stage without checkpoints, which is not requeued.

    Raises:
        UserError: the launcher is not installed, or SLURM does not answer.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        return _launch(launcher, layout, command, log, checkpoints)
    except UserError as error:
        # The log is where a user looks for the reason of a failed job.
        with named_in_errors(log), log.open("a") as log_file:
            log_file.write(f"error: {error}\n")
        raise


def _launch(
    launcher: str, layout: Layout, command: Sequence[str], log: Path, checkpoints: Path | None
) -> int:
    job = slurm.retry(slurm.own_job)
    words = shlex.split(launcher)
    line = [*words, "-n", str(layout.ranks), *command]
    by_mpirun = any(Path(word).name in MPIRUN for word in words)
    run = partial(_run, line, by_mpirun, environment(os.environ, layout, job))
    if checkpoints is None:
        with named_in_errors(log), log.open("w") as log_file:
            return run(progress.progress_log((sys.stdout, log_file)))
    restarted = job is not None and slurm.retry(partial(slurm.restarts_of, job.number)) > 0
    starts = _Starts(checkpoints, restarted)
    with (
        named_in_errors(log),
        log.open("w") as log_file,
        named_in_errors(starts.log),
        starts.log.open("a+") as starts_file,
    ):
        # Snakemake deletes the log before each start of its job: restore the earlier output.
        starts_file.seek(0)
        log_file.write(starts_file.read())

        write = progress.progress_log((sys.stdout, log_file, starts_file))
        out_of_memory = False

        def write_and_check(text: str) -> None:
            nonlocal out_of_memory
            out_of_memory = out_of_memory or OUT_OF_MEMORY.match(text) is not None
            write(text)

        kills_before = oom_kills()
        status = run(write_and_check)
        # SLURM does not report ranks that `mpirun` started on its own node before the job ends.
        out_of_memory = out_of_memory or oom_kills() > kills_before
        if status not in FINAL and job is not None and out_of_memory:
            # A restart would run out of memory again. Snakemake resubmits the job with more.
            write(f"status {status}: a rank ran out of memory and was killed; the job needs more\n")
            starts.forget()
            return status
        if status in FINAL:
            starts.forget()
            return status
        if job is None:
            write(f"training stopped (status {status}); run the same command again to resume\n")
            return status
        if not starts.may_start_again():
            write(f"{MAX_FRUITLESS} starts in a row (status {status}) without a new checkpoint\n")
            starts.forget()
            return status
        return _requeue(job.number, status, write)


def environment(given: Mapping[str, str], layout: Layout, job: slurm.Job | None) -> dict[str, str]:
    """Return the environment of a launcher.

    Snakemake's SLURM executor removes most of SLURM's variables before the command starts. Without
    them `srun` would give each rank one core and place the ranks freely, and `mpirun` would start
    all of them on the first node.
    """
    # By default, Open MPI refuses to run as root, as in containers, and to start more ranks than
    # cores, as in a trial on a laptop. The names are those of its releases 4 and 5.
    defaults = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        # A waiting rank yields its core. Otherwise the thread in which Horovod waits takes the core
        # from the computation: with two ranks of one core each, training took 50 % longer.
        "OMPI_MCA_mpi_yield_when_idle": "1",
        # The transport for one-sided messages, which are not used, sleeps for a second at startup.
        "OMPI_MCA_btl": "^ofi",
    }
    if job is not None:
        per_node = f"{layout.ranks_per_node}(x{layout.nodes})"
        # Allowed to oversubscribe, mpirun would start all ranks on the first node.
        del defaults["OMPI_MCA_rmaps_base_oversubscribe"]
        defaults |= {
            "OMPI_MCA_rmaps_base_mapping_policy": f"ppr:{layout.ranks_per_node}:node",
            "PRTE_MCA_rmaps_default_mapping_policy": f"ppr:{layout.ranks_per_node}:node",
            "SLURM_NODELIST": job.nodes,
            "SLURM_JOB_NODELIST": job.nodes,
            "SLURM_NNODES": str(layout.nodes),
            "SLURM_JOB_NUM_NODES": str(layout.nodes),
            "SLURM_NTASKS": str(layout.ranks),
            "SLURM_NTASKS_PER_NODE": str(layout.ranks_per_node),
            "SLURM_TASKS_PER_NODE": per_node,
            "SLURM_CPUS_PER_TASK": str(layout.cores),
            "SRUN_CPUS_PER_TASK": str(layout.cores),
            # The first rank that fails ends all; otherwise the others wait until the job ends.
            "SLURM_KILL_BAD_EXIT": "1",
        }
    return defaults | dict(given)


def _run(
    line: Sequence[str],
    by_mpirun: bool,
    environment: dict[str, str],
    write: Callable[[str], None],
) -> int:
    """Run the launcher; signals to this process stop its ranks. Return the status as a shell does.

    If `mpirun` itself receives SIGTERM, the status is `START_AGAIN`.
    """
    child: subprocess.Popen[str] | None = None
    stopping = False

    def stop_ranks(*_: object) -> None:
        nonlocal stopping
        stopping = True
        if child is not None:
            child.send_signal(STOP)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        signal.signal(number, stop_ranks)
    try:
        child = subprocess.Popen(
            line,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Ctrl-C in a terminal must reach the ranks as STOP, through this process.
            start_new_session=True,
        )
    except OSError as error:
        raise UserError(
            f"{line[0]}: {error.strerror}; the ranks are started with the resource `launcher` of "
            "the rule, which a profile sets"
        ) from None
    if stopping:  # the signal came while the launcher was started
        child.send_signal(STOP)
    assert child.stdout is not None
    exited: list[int] = []
    failed = False
    for text in child.stdout:
        write(text)
        failed = failed or FAILED.match(text) is not None
        if match := EXIT_LINE.match(text):
            if not exited:
                _kill_later(child, write)
            exited.append(int(match[1]))
    status = child.wait()
    if status == 1 and by_mpirun and not exited and not failed:
        write(f"a signal from outside stopped {line[0]} (status 1); no rank reported an error\n")
        return START_AGAIN
    if (killed_by := abs(status) - 128 if status > 128 else -status) > 0 and not exited:
        with contextlib.suppress(ValueError):  # no such signal
            name = (signal.strsignal(signal.Signals(killed_by)) or "").lower()
            write(f"a rank was killed by signal {killed_by} ({name})\n")
    # The status of an error is less than START_AGAIN, the status of the ranks that it ends.
    return min(exited) if exited else status if status >= 0 else 128 - status


def _kill_later(child: subprocess.Popen[str], write: Callable[[str], None]) -> None:
    """Kill a launcher that still runs after a rank exited: it waits for an unreachable one."""

    def kill() -> None:
        if child.poll() is None:
            write(f"the launcher is still running {EXIT_LIMIT:g} s after a rank exited; killed\n")
            os.killpg(child.pid, signal.SIGKILL)

    timer = threading.Timer(EXIT_LIMIT, kill)
    timer.daemon = True
    timer.start()


def _requeue(job: str, status: int, write: Callable[[str], None]) -> int:
    """Requeue the job, so that SLURM ends this start of it; return the exit status on failure."""
    try:
        # SLURM may already have cancelled or requeued the job.
        state = slurm.state_of(job)
        if state != "RUNNING":
            write(f"status {status}: job {job} is {state}\n")
            return status
        slurm.requeue(job)
    except slurm.SlurmError as error:
        write(f"status {status}: job {job} cannot be requeued: {error}\n")
        return status
    write(f"status {status}: job {job} is requeued and will resume from its checkpoint\n")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(REQUEUE_LIMIT)
    write(f"SLURM has not ended job {job} within {REQUEUE_LIMIT:g} s\n")
    return status


class _Starts:
    """The starts of a job: their output, and how many in a row saved no new checkpoint."""

    def __init__(self, checkpoints: Path, restarted: bool) -> None:
        checkpoints.mkdir(parents=True, exist_ok=True)
        self.log = checkpoints / "starts.log"
        self._count = checkpoints / "starts.json"
        self._checkpoints = checkpoints
        self._before = self._newest()
        if not restarted:
            self.forget()

    def _newest(self) -> Path | None:
        return next(iter(checkpoints_by_time(self._checkpoints)), None)

    def may_start_again(self) -> bool:
        """Count this start; return whether the job may be restarted."""
        fruitless = 0
        if self._newest() == self._before:
            fruitless = 1
            if self._count.exists():
                fruitless += read_json(self._count)["fruitless"]
        write_json(self._count, {"fruitless": fruitless})
        return fruitless < MAX_FRUITLESS

    def forget(self) -> None:
        """Forget the earlier starts."""
        self.log.unlink(missing_ok=True)
        self._count.unlink(missing_ok=True)
