"""What ends a rank before its end: a signal that asks for it, and another rank that is gone.

Only the standard library is imported, so that a signal is heard before TensorFlow is even loaded.
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

# What schedulers send before they take a job's machine. Not SIGUSR1: NCCL has used it for itself.
SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
# Seconds between two looks of the watchdog.
LOOK_EVERY = 1.0
# The last line of a rank that exits early, as `exit_now` writes it. The launcher's own status may
# be that of another rank, which it killed, and without a network it may never come.
LEFT = re.compile(r"^(?:a rank|rank \d+ of \d+) on \S+ left with status (\d+)$")

_received: set[int] = set()


def catch_signals() -> None:
    """From now on a signal of `SIGNALS` is only remembered; `received_signals` returns it."""
    for number in SIGNALS:
        signal.signal(number, _remember)


def _remember(number: int, frame: FrameType | None) -> None:
    # No more than this: between which two instructions it happens, nobody knows.
    _received.add(number)


def received_signals() -> list[bool]:
    """Return for each of `SIGNALS` whether this process has had it."""
    return [number in _received for number in SIGNALS]


def exit_now(name: str, status: int) -> NoReturn:
    """End this process at once, with a last line that tells why, as `LEFT` reads it.

    What Python and Horovod do at a regular end would wait for the others.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    announce_exit(name, status)
    os._exit(status)


def announce_exit(name: str, status: int, message: str = "") -> None:
    """Write that last line, and a message before it."""
    # In one write, past Python's buffers and their locks: lines of ranks do not mix.
    os.write(sys.stderr.fileno(), f"{message}{name} left with status {status}\n".encode())


class Watchdog:
    """Ends this process when it has waited for too long, which no error would.

    Where the network is cut or a node is gone, MPI waits without end, and Horovod's own check of
    stalled ranks waits with it. So a thread of its own watches, and leaves with `START_AGAIN`.
    """

    def __init__(self, limit: float, name: str, again: str) -> None:
        """Begin to watch.

        Args:
            limit: seconds after which waiting ends the process.
            name: of this process, for the message; may be set anew when more is known.
            again: for the message, what the same command does when it is started again.
        """
        self._limit, self.name, self._again = limit, name, again
        self._where, self._beats, self._off = "at the start", 0, False
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def report_progress(self, where: str) -> None:
        """Say that the process got on: what it has done, or where it is."""
        self._where, self._beats = where, self._beats + 1

    def off(self) -> None:
        """Watch no more."""
        self._off = True

    def _watch(self) -> None:
        silent, beats = 0.0, self._beats
        # Looks are counted, not a clock read: while the process itself is suspended, it is not the
        # others who keep it waiting.
        while not self._off:
            time.sleep(min(LOOK_EVERY, self._limit / 10))
            silent += min(LOOK_EVERY, self._limit / 10)
            if self._beats != beats:
                silent, beats = 0.0, self._beats
            elif silent >= self._limit and not self._off:
                # Without a flush: the thread that waits may hold the locks of Python's buffers.
                announce_exit(
                    self.name,
                    START_AGAIN,
                    f"{self.name}: no step finished for {silent:.0f} s, last {self._where}; "
                    "another rank or its node is gone or unreachable; started again, "
                    f"{self._again}\n",
                )
                os._exit(START_AGAIN)
