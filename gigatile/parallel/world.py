"""Processes that do one job together, through MPI and without TensorFlow.

What one of them cannot do, all of them hear of at their next meeting, and they end there together:
no rank waits for one that has gone, and a user reads one message. Who vanishes without a word is
noticed by the launcher, which ends the others, and at the latest by each rank's watchdog.
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

# Seconds that MPI has to end the others when one fails where they do not meet.
ABORT_LIMIT = 5.0
# Seconds between two looks whether all ranks have come, when that takes long.
LONGEST_PAUSE = 0.005


class Bug(Exception):
    """A fault of the program on one or several ranks; the text holds their tracebacks."""


@dataclass(frozen=True)
class _Fault:
    """What kept a rank from doing its part."""

    text: str
    bug: bool


class World:
    """This process among those that work together; this very class: alone.

    Attributes:
        rank: its number, 0 … size - 1.
        size: how many processes work together.
    """

    rank = 0
    size = 1

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of an array over all ranks, the same on each."""
        return values

    def gather(self, work: Callable[[], T]) -> list[T]:
        """Do a part of the work on every rank; return what each made of its own, on each.

        Raises:
            UserError, Bug: on every rank, when any of them failed.
        """
        return [work()]

    def on_rank0(self, work: Callable[[], T]) -> T:
        """Do something on rank 0 alone; return what it made, on every rank.

        Raises:
            UserError, Bug: on every rank, when it failed.
        """
        return work()

    def report_progress(self, where: str) -> None:
        """Tell the watchdog that this rank got on, and where it is."""


class _Launched(World):
    """One of the ranks of an MPI launch."""

    def __init__(self, ranks: Any, watchdog: Watchdog) -> None:
        self._ranks, self._watchdog = ranks, watchdog
        self.rank, self.size = ranks.rank, ranks.size
        self.name = f"rank {self.rank} of {self.size} on {socket.gethostname()}"

    def _meet(self) -> None:
        """Wait until every rank is here; asleep, where MPI would keep a core busy all the time."""
        here, pause = self._ranks.Ibarrier(), 1e-5
        while not here.Test():
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def sum(self, values: np.ndarray) -> np.ndarray:
        total = np.empty_like(values)
        self._meet()
        self._ranks.Allreduce(np.ascontiguousarray(values), total)
        self.report_progress("when sums were exchanged")
        return total

    def gather(self, work: Callable[[], T]) -> list[T]:
        mine = self._try(work)
        self._meet()
        found = self._ranks.allgather(mine)
        self.report_progress("when the ranks met")
        _raise_together([fault for _, fault in found if fault])
        return [result for result, _ in found]

    def on_rank0(self, work: Callable[[], T]) -> T:
        mine = self._try(work) if self.rank == 0 else None
        self._meet()
        found = self._ranks.bcast(mine)
        self.report_progress("when rank 0 was waited for")
        result, fault = found
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
    """Marks an error that every rank has at the same point."""


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
    """Join the other processes of this MPI launch for the block; alone, MPI is not even loaded.

    How the block ends decides how the process does, and with several ranks it ends here, not in
    its caller. Errors of `World.gather` and `World.on_rank0` are told by rank 0, once.

    Args:
        ranks: processes launched, all in all.
        limit: seconds after which a rank that got nowhere ends, as another one must be gone.
        again: what the same command does when it is started again, for that rank's message.
    """
    if ranks == 1:
        yield World()
        return
    watchdog = Watchdog(limit, f"a rank on {socket.gethostname()}", again)
    leave_munge_out()
    from mpi4py import MPI

    world = _Launched(MPI.COMM_WORLD, watchdog)
    watchdog.name = world.name
    try:
        if world.size != ranks:
            raise UserError(
                f"started as {world.size} process(es) where --ranks is {ranks}; the launcher and "
                "the settings must agree"
            )
        yield world
        MPI.Finalize()
    except Exception as error:
        _leave(world, MPI.COMM_WORLD, error)
    watchdog.off()


def leave_munge_out() -> None:
    """Spare every rank a long complaint of PMIx; call it before MPI is loaded.

    SLURM's PMIx names munge first, which the Open MPI of the lock file does not bring; it says so
    at length on every rank, and takes the second.
    """
    if "native" in os.environ.get("PMIX_SECURITY_MODE", "").split(","):
        os.environ["PMIX_SECURITY_MODE"] = "native"


def _leave(world: _Launched, ranks: Any, error: Exception) -> None:
    """End this process for an error; for one of its own, the others with it."""
    status = 2 if describe_error(error) is not None else 1
    if isinstance(error, _Together):
        if world.rank == 0:
            heading = "error: " if status == 2 else ""
            print(f"{heading}{error}", file=sys.stderr, flush=True)
        # Whoever leaves first has the launcher end the rest: not before rank 0 has spoken.
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
