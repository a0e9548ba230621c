"""Starting the ranks of a stage: one way for a laptop's `mpirun` and for a cluster's `srun`.

Under SLURM this is also the layer, and the only one, that starts a stopped training again. A rank
that was asked to stop (before a preemption or the end of the time limit), that waited too long for
another, or that was lost with its node leaves with a status that says so; the job then goes back
into the queue under its own number, and its next start goes on from the newest checkpoint.
Snakemake sees a job that waits. An error of the user or a bug ends the job for good. A stage that
keeps no checkpoints would begin anew; to start it again is Snakemake's.

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
from gigatile.parallel.interruption import LEFT
from gigatile.parallel.memory import oom_kills
from gigatile.training.checkpoints import checkpoints_by_time

# Statuses with which a command says that starting it again would change nothing.
FINAL = (0, 1, 2)
# What SLURM says, among the ranks' own words, of one that was killed for its memory.
OUT_OF_MEMORY = re.compile(r"^(?:srun|slurmstepd): error: .*(?:Out Of Memory|oom[-_ ]kill)", re.I)
# The launchers of Open MPI and MPICH. On SIGTERM that of Open MPI 5.0.11 kills the ranks, drops
# what they still print, prints nothing itself, and leaves with status 1, as after a bug.
MPIRUN = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
# What is always printed when a rank failed with status 1, or when mpirun itself did: Python's
# traceback, or the rule above and below a message of mpirun.
FAILED = re.compile(r"Traceback \(most recent call last\):|[-=]{60,}$")
# Starts in a row that may end without a new checkpoint before the job fails.
FRUITLESS = 3
# Seconds that a launcher has to end all ranks after the first one has left.
LEAVE_LIMIT = 30.0
# Seconds that SLURM has, after it took a job back into the queue, to end this start of it.
REQUEUE_LIMIT = 300.0
# The signal that asks the ranks to save and leave. `srun` and `mpirun` pass it on, while SIGTERM
# makes them end the ranks at once.
STOP = signal.SIGUSR2


@dataclass(frozen=True)
class Layout:
    """How many ranks run where.

    Attributes:
        nodes: hosts.
        ranks_per_node: processes on each.
        cores: cores of each process.
    """

    nodes: int
    ranks_per_node: int
    cores: int

    @property
    def ranks(self) -> int:
        """All processes together."""
        return self.nodes * self.ranks_per_node


def launch(
    launcher: str, layout: Layout, command: Sequence[str], log: Path, checkpoints: Path | None
) -> int:
    """Run a command on all ranks, its output shown and kept; return the status to leave with.

    Args:
        launcher: what starts ranks here, with its options: `mpirun`, `srun --mpi=pmix`, ….
        layout: how many ranks, and where.
        command: what each rank runs.
        log: takes the output of all ranks, of every start of the same job.
        checkpoints: the folder in which a training's progress is seen; takes what one start leaves
            for the next. None: a stage of which nothing is left, and which is not started again.

    Raises:
        UserError: the launcher is not installed here, or SLURM does not answer what it is asked
            about its own job.
    """
    job = slurm.patiently(slurm.own_job)
    words = shlex.split(launcher)
    line = [*words, "-n", str(layout.ranks), *command]
    by_mpirun = any(Path(word).name in MPIRUN for word in words)
    run = partial(_run, line, by_mpirun, environment(os.environ, layout, job))
    log.parent.mkdir(parents=True, exist_ok=True)
    if checkpoints is None:
        with named_in_errors(log), log.open("w") as shown:
            return run(progress.to((sys.stdout, shown)))
    again = job is not None and slurm.patiently(partial(slurm.restarts_of, job.number)) > 0
    starts = _Starts(checkpoints, again)
    with (
        named_in_errors(log),
        log.open("w") as shown,
        named_in_errors(starts.log),
        starts.log.open("a+") as kept,
    ):
        # Snakemake removes a log before each start of its job; what earlier starts wrote is here.
        kept.seek(0)
        shown.write(kept.read())

        tell = progress.to((sys.stdout, shown, kept))
        killed_for_memory = False

        def tell_and_look(text: str) -> None:
            nonlocal killed_for_memory
            killed_for_memory = killed_for_memory or OUT_OF_MEMORY.match(text) is not None
            tell(text)

        killed_before = oom_kills()
        status = run(tell_and_look)
        # Of ranks that `mpirun` started on its own node, SLURM says nothing in time.
        killed_for_memory = killed_for_memory or oom_kills() > killed_before
        if status not in FINAL and job is not None and killed_for_memory:
            # As it was, it would be killed again; Snakemake submits it anew, with more.
            tell(f"status {status}: a rank was killed for its memory; the job needs more\n")
            starts.forget()
            return status
        if status in FINAL:
            starts.forget()
            return status
        if job is None:
            tell(f"the training was stopped (status {status}); run again, it goes on\n")
            return status
        if not starts.may_start_again():
            tell(f"{FRUITLESS} starts in a row (status {status}) without a new checkpoint\n")
            starts.forget()
            return status
        return _requeue(job.number, status, tell)


def environment(given: Mapping[str, str], layout: Layout, job: slurm.Job | None) -> dict[str, str]:
    """Return the environment for a launcher: what is known of its job, and a laptop's leave.

    Snakemake's SLURM executor takes most of SLURM's variables away before the command starts;
    without them `srun` would give each rank one core and place the ranks as it likes, and `mpirun`
    would start all of them on the first node.
    """
    # Open MPI refuses to start as root, as in containers, and with more ranks than cores, as in a
    # trial on a laptop, unless it is told. The names are those of its releases 4 and 5.
    defaults = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        # A rank that waits for another gives its core away. Horovod waits in a thread of its own,
        # which would else take the core from the rank's arithmetic: on two ranks of one core each
        # a training took half as long again.
        "OMPI_MCA_mpi_yield_when_idle": "1",
        # Its transport for one-sided messages, which nothing here sends, sleeps for a second first.
        "OMPI_MCA_btl": "^ofi",
    }
    if job is not None:
        per_node = f"{layout.ranks_per_node}(x{layout.nodes})"
        # Leave to oversubscribe would put all ranks on the first node.
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
            # One rank that ends ends all; without it the others wait for the end of the job.
            "SLURM_KILL_BAD_EXIT": "1",
        }
    return defaults | dict(given)


def _run(
    line: Sequence[str], by_mpirun: bool, given: dict[str, str], tell: Callable[[str], None]
) -> int:
    """Run the launcher; signals to this process ask its ranks to stop. Return a shell's status.

    If somebody sends SIGTERM to `mpirun` itself, the status is `START_AGAIN`.
    """
    child: subprocess.Popen[str] | None = None
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        asked = True
        if child is not None:
            child.send_signal(STOP)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        signal.signal(number, ask)
    try:
        child = subprocess.Popen(
            line,
            env=given,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # A Ctrl-C in a terminal reaches the ranks through here, as a request.
            start_new_session=True,
        )
    except OSError as error:
        raise UserError(
            f"{line[0]}: {error.strerror}; the ranks are started with the resource `launcher` of "
            "the rule, which a profile sets"
        ) from None
    if asked:  # while it was being started
        child.send_signal(STOP)
    assert child.stdout is not None
    left: list[int] = []
    failed = False
    for text in child.stdout:
        tell(text)
        failed = failed or FAILED.match(text) is not None
        if found := LEFT.match(text):
            if not left:
                _end_soon(child, tell)
            left.append(int(found[1]))
    status = child.wait()
    if status == 1 and by_mpirun and not left and not failed:
        tell(f"a signal from outside stopped {line[0]} (status 1); no rank reported an error\n")
        return START_AGAIN
    if (ended := abs(status) - 128 if status > 128 else -status) > 0 and not left:
        with contextlib.suppress(ValueError):  # no such signal
            name = (signal.strsignal(signal.Signals(ended)) or "").lower()
            tell(f"a rank was ended by signal {ended} ({name})\n")
    # An error is less than START_AGAIN, with which others leave because of it.
    return min(left) if left else status if status >= 0 else 128 - status


def _end_soon(child: subprocess.Popen[str], tell: Callable[[str], None]) -> None:
    """End a launcher that waits on after a rank has left: for one whom it cannot reach."""

    def end() -> None:
        if child.poll() is None:
            tell(f"the launcher has not ended {LEAVE_LIMIT:g} s after a rank; it is ended\n")
            os.killpg(child.pid, signal.SIGKILL)

    timer = threading.Timer(LEAVE_LIMIT, end)
    timer.daemon = True
    timer.start()


def _requeue(job: str, status: int, tell: Callable[[str], None]) -> int:
    """Give the job back to SLURM, which then ends this start of it; return a status if it fails."""
    try:
        # SLURM may have decided already: to cancel the job, or to start it again itself.
        state = slurm.state_of(job)
        if state != "RUNNING":
            tell(f"status {status}: job {job} is {state}\n")
            return status
        slurm.requeue(job)
    except slurm.SlurmError as error:
        tell(f"status {status}: SLURM does not take job {job} back: {error}\n")
        return status
    tell(f"status {status}: job {job} is back in the queue; it goes on from its checkpoint\n")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(REQUEUE_LIMIT)
    tell(f"job {job} was not ended within {REQUEUE_LIMIT:g} s\n")
    return status


class _Starts:
    """The starts of one job: what they wrote, and how many in a row brought no new checkpoint."""

    def __init__(self, checkpoints: Path, again: bool) -> None:
        checkpoints.mkdir(parents=True, exist_ok=True)
        self.log = checkpoints / "starts.log"
        self._count = checkpoints / "starts.json"
        self._checkpoints = checkpoints
        self._before = self._newest()
        if not again:
            self.forget()

    def _newest(self) -> Path | None:
        return next(iter(checkpoints_by_time(self._checkpoints)), None)

    def may_start_again(self) -> bool:
        """Count this start; return whether another one is worth it."""
        fruitless = 0
        if self._newest() == self._before:
            fruitless = 1
            if self._count.exists():
                fruitless += read_json(self._count)["fruitless"]
        write_json(self._count, {"fruitless": fruitless})
        return fruitless < FRUITLESS

    def forget(self) -> None:
        """Begin anew."""
        self.log.unlink(missing_ok=True)
        self._count.unlink(missing_ok=True)
