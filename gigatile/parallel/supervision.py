"""Run work that may hang or crash in a supervised subprocess."""

import ctypes
import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

T = TypeVar("T")
_PR_SET_PDEATHSIG = 1  # prctl(2)
# Signals with which a process ends if its own code crashes, such as that of a decoder.
_CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGTRAP")


class Stalled(Exception):
    """The work made no progress and was killed; `last` is its last report, or None."""

    def __init__(self, last: Any) -> None:
        super().__init__(last)
        self.last = last


class Crashed(Exception):
    """A signal ended the work's process, such as a segmentation fault in a codec.

    `by` is the name of the signal, `last` the last report. `killed` is whether the system or a user
    sent the signal: usually, the process needed too much memory or time.
    """

    def __init__(self, by: int, last: Any) -> None:
        super().__init__(by, last)
        self.by, self.last = signal.Signals(by).name, last
        self.killed = self.by not in _CRASHES


def run_supervised(work: Callable[[Callable[[Any], None]], T], minutes: float) -> T:
    """Run `work` in a subprocess and return its result; kill it if it makes no progress.

    The subprocess is a fork of this process, which must not have opened the files that the work
    reads. If this process is killed, so is the subprocess.

    Args:
        work: takes a function, which it calls to report its progress: any value that can be
            pickled; None repeats the last report.
        minutes: the longest time without a report.

    Raises:
        Stalled, Crashed: with the last report.
        Exception: raised by `work`.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(work, sender, receiver, os.getpid()))
    process.start()
    sender.close()
    last = None
    try:
        while True:
            if not receiver.poll(minutes * 60):
                raise Stalled(last)
            try:
                kind, value = receiver.recv()
            except EOFError:
                process.join()
                if process.exitcode and process.exitcode < 0:
                    raise Crashed(-process.exitcode, last) from None
                raise RuntimeError(f"the subprocess ended with status {process.exitcode}") from None
            if kind == "result":
                return value
            if kind == "error":
                raise value
            last = last if value is None else value
    finally:
        process.kill()
        process.join(5)
        if process.is_alive():
            # It waits for a disk and cannot be killed. Do not wait for it at exit.
            multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]


def _run(
    work: Callable[[Callable[[Any], None]], Any],
    sender: Connection,
    receiver: Connection,
    parent: int,
) -> None:
    receiver.close()  # otherwise sending would not fail once the parent is gone
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent handles it and ends this process
    try:
        result = work(lambda value: sender.send(("progress", value)))
    except Exception as error:
        error.add_note(traceback.format_exc())  # pickling loses the traceback
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        sender.send(("error", error))
    else:
        sender.send(("result", result))
