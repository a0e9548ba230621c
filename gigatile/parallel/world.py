"""Ranks of an MPI launch, without TensorFlow.

If a rank fails, all ranks learn of it in the next collective call and exit there together: no rank
waits for a lost one, and the user reads one message. The launcher detects ranks that die without
reporting, and ends the others; if it cannot, each rank's watchdog ends the rank.
"""

import contextlib
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from gigatile.errors import UserError, all_faults, describe_error
from gigatile.parallel.interruption import Watchdog, announce_exit, exit_now

T = TypeVar("T")

# Seconds that MPI has to end the other ranks after a rank failed outside a collective call.
ABORT_LIMIT = 5.0
# Longest time between two checks whether all ranks have reached a barrier, in seconds.
MAX_PAUSE = 0.005


class Bug(Exception):
    """A bug on one or several ranks; the text contains their tracebacks."""


@dataclass(frozen=True)
class _Fault:
    """An error of one rank."""

    text: str
    bug: bool


class World:
    """The ranks of a launch. This base class is a launch with a single rank.

    Attributes:
        rank: the number of this rank, 0 … size - 1.
        size: the number of ranks.
    """

    rank = 0
    size = 1

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of an array over all ranks, on every rank."""
        return values

    def gather(self, work: Callable[[], T]) -> list[T]:
        """Call `work` on every rank; return the list of results on every rank.

        Raises:
            UserError, Bug: on every rank, if `work` failed on any.
        """
        return [work()]

    def on_rank0(self, work: Callable[[], T]) -> T:
        """Call `work` on rank 0; return its result on every rank.

        Raises:
            UserError, Bug: on every rank, if `work` failed.
        """
        return work()

    def report_progress(self, where: str) -> None:
        """Report to the watchdog that this rank made progress, and where it is."""


class _Launched(World):
    """One of the ranks of an MPI launch."""

    def __init__(self, ranks: Any, watchdog: Watchdog) -> None:
        self._ranks, self._watchdog = ranks, watchdog
        self.rank, self.size = ranks.rank, ranks.size
        self.name = f"rank {self.rank} of {self.size} on {socket.gethostname()}"

    def _barrier(self) -> None:
        """Wait for all ranks. MPI's own barrier would keep a core busy; this one sleeps."""
        request, pause = self._ranks.Ibarrier(), 1e-5
        while not request.Test():
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)

    def sum(self, values: np.ndarray) -> np.ndarray:
        total = np.empty_like(values)
        self._barrier()
        self._ranks.Allreduce(np.ascontiguousarray(values), total)
        self.report_progress("in a sum over all ranks")
        return total

    def gather(self, work: Callable[[], T]) -> list[T]:
        own = self._try(work)
        self._barrier()
        outcomes = self._ranks.allgather(own)
        self.report_progress("in a gather from all ranks")
        _raise_together([fault for _, fault in outcomes if fault])
        return [result for result, _ in outcomes]

    def on_rank0(self, work: Callable[[], T]) -> T:
        own = self._try(work) if self.rank == 0 else None
        self._barrier()
        result, fault = self._ranks.bcast(own)
        self.report_progress("in a broadcast from rank 0")
        _raise_together([fault] if fault else [])
        return result

    def report_progress(self, where: str) -> None:
        self._watchdog.report_progress(where)

    def _try(self, work: Callable[[], T]) -> tuple[T | None, _Fault | None]:
        try:
            return work(), None
        except Exception as error:
            message = describe_error(error)
            if message is not None:
                return None, _Fault(message, False)
            text = "".join(traceback.format_exception(error))
            return None, _Fault(f"a bug ({self.name}):\n{text}", True)


class _Together(Exception):
    """Marks an error that every rank raises in the same collective call."""


class _UserErrorTogether(UserError, _Together):
    pass


class _BugTogether(Bug, _Together):
    pass


def _raise_together(faults: list[_Fault]) -> None:
    texts = list(dict.fromkeys(fault.text for fault in faults))
    if any(fault.bug for fault in faults):
        raise _BugTogether("\n".join(texts))
    if len(texts) == 1:
        raise _UserErrorTogether(texts[0])
    if texts:
        raise _UserErrorTogether(str(all_faults(f"{len(texts)} faults", texts)))


@contextlib.contextmanager
def join(ranks: int, limit: float, again: str) -> Iterator[World]:
    """Join the other ranks of this MPI launch for the block. A single rank does not load MPI.

    With several ranks, an error in the block ends the process here. Rank 0 prints errors of
    `World.gather` and `World.on_rank0` once.

    Args:
        ranks: the number of ranks launched.
        limit: abort if this rank makes no progress for this many seconds; another rank has
            probably died.
        again: what the same command does when it is restarted, for that message.
    """
    if ranks == 1:
        yield World()
        return
    watchdog = Watchdog(limit, f"a rank on {socket.gethostname()}", again)
    disable_munge()
    from mpi4py import MPI

    world = _Launched(MPI.COMM_WORLD, watchdog)
    watchdog.name = world.name
    try:
        if world.size != ranks:
            raise UserError(
                f"started as {world.size} process(es), but --ranks is {ranks}; the launcher and "
                "the settings must agree"
            )
        yield world
        MPI.Finalize()
    except Exception as error:
        _leave(world, MPI.COMM_WORLD, error)
    watchdog.stop()


def disable_munge() -> None:
    """Avoid a long PMIx warning on every rank. Call this before MPI is loaded.

    SLURM's PMIx lists munge first, which the Open MPI of the lock file does not include. PMIx warns
    and uses the second entry.
    """
    if "native" in os.environ.get("PMIX_SECURITY_MODE", "").split(","):
        os.environ["PMIX_SECURITY_MODE"] = "native"


def _leave(world: _Launched, ranks: Any, error: Exception) -> None:
    """End this process because of an error, and the other ranks if only this one has it."""
    status = 2 if describe_error(error) is not None else 1
    if isinstance(error, _Together):
        if world.rank == 0:
            heading = "error: " if status == 2 else ""
            print(f"{heading}{error}", file=sys.stderr, flush=True)
        # The first rank to exit makes the launcher end the others: rank 0 must print first.
        ranks.Barrier()
        exit_now(world.name, status)
    if status == 2:
        sys.stderr.write(f"error ({world.name}): {describe_error(error)}\n")
    else:
        text = "".join(traceback.format_exception(error))
        sys.stderr.write(f"a bug ({world.name}):\n{text}")
    sys.stderr.flush()
    fallback = threading.Timer(ABORT_LIMIT, os._exit, [status])
    fallback.daemon = True
    fallback.start()
    announce_exit(world.name, status)
    ranks.Abort(status)
