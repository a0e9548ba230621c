"""Signals that stop a rank, and a watchdog for ranks that wait for a lost one.

Only the standard library is imported, so that signals are handled before TensorFlow is loaded.
"""

import os
import re
import signal
import sys
import threading
import time
from types import FrameType
from typing import NoReturn

from gigatile.errors import START_AGAIN

# Sent by schedulers before they take a job's machine. Not SIGUSR1, which NCCL uses itself.
SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
# Seconds between two checks of the watchdog.
CHECK_INTERVAL = 1.0
# The last line of a rank that exits early, as `announce_exit` writes it. The launcher's own status
# may be that of another rank, which it killed, and without a network it may never come.
EXIT_LINE = re.compile(r"^(?:a rank|rank \d+ of \d+) on \S+ exited with status (\d+)$")

_received: set[int] = set()


def catch_signals() -> None:
    """Record the signals of `SIGNALS` instead of being ended by them; see `received_signals`."""
    for number in SIGNALS:
        signal.signal(number, _record)


def _record(number: int, frame: FrameType | None) -> None:
    # Do nothing else: a handler runs between any two instructions.
    _received.add(number)


def received_signals() -> list[bool]:
    """Return for each of `SIGNALS` whether this process has received it."""
    return [number in _received for number in SIGNALS]


def exit_now(name: str, status: int) -> NoReturn:
    """Announce the exit of this rank and end the process at once.

    A regular exit of Python and Horovod would wait for the other ranks.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    announce_exit(name, status)
    os._exit(status)


def announce_exit(name: str, status: int, message: str = "") -> None:
    """Write `message` and the `EXIT_LINE` of a rank to stderr."""
    # In one write, past Python's buffers and their locks, so that lines of ranks do not mix.
    os.write(sys.stderr.fileno(), f"{message}{name} exited with status {status}\n".encode())


class Watchdog:
    """Ends this process if it makes no progress.

    If a node or the network fails, MPI waits forever without an error, and Horovod's own stall
    check waits with it. So a thread checks for progress, and exits with `START_AGAIN`.
    """

    def __init__(self, limit: float, name: str, again: str) -> None:
        """Start the watchdog.

        Args:
            limit: seconds without progress after which the process ends.
            name: of this rank, for the message; may be replaced once its number is known.
            again: what the same command does when it is restarted, for the message.
        """
        self._limit, self.name, self._again = limit, name, again
        self._where, self._reports, self._stopped = "at the start", 0, False
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def report_progress(self, where: str) -> None:
        """Report that this process made progress, and where it is."""
        self._where, self._reports = where, self._reports + 1

    def stop(self) -> None:
        """Stop the watchdog."""
        self._stopped = True

    def _watch(self) -> None:
        interval = min(CHECK_INTERVAL, self._limit / 10)
        waited, reports = 0.0, self._reports
        # Count checks instead of reading a clock: time while this process is suspended must not
        # count as waiting for others.
        while not self._stopped:
            time.sleep(interval)
            waited += interval
            if self._reports != reports:
                waited, reports = 0.0, self._reports
            elif waited >= self._limit and not self._stopped:
                # No flush: the waiting thread may hold the locks of Python's buffers.
                announce_exit(
                    self.name,
                    START_AGAIN,
                    f"{self.name}: no step finished for {waited:.0f} s, last {self._where}; "
                    "another rank or its node has failed or is unreachable; when restarted, "
                    f"{self._again}\n",
                )
                os._exit(START_AGAIN)
