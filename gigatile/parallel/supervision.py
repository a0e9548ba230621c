"""Work on a file that may never end, in a process of its own that is ended when it stands still."""

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


class Stalled(Exception):
    """The work stood still and was ended; `last` is what it told last, None if it told nothing."""

    def __init__(self, last: Any) -> None:
        super().__init__(last)
        self.last = last


class Crashed(Exception):
    """The work's process was ended by a signal, as when a codec reads where it must not."""

    def __init__(self, by: int, last: Any) -> None:
        super().__init__(by, last)
        self.by, self.last = signal.Signals(by).name, last


def run_supervised(work: Callable[[Callable[[Any], None]], T], minutes: float) -> T:
    """Return what `work` returns; end it when it tells nothing for so long.

    It runs in a fork of this process, which must not have opened what it works on. When this
    process is killed, so is that one.

    Args:
        work: takes a function, with which it tells from time to time how far it is: anything that
            can be pickled; None repeats what was told last.
        minutes: how long it may tell nothing.

    Raises:
        Stalled, Crashed: with what it told last.
        Exception: what `work` raises.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(work, theirs, ours, os.getpid()))
    process.start()
    theirs.close()
    last = None
    try:
        while True:
            if not ours.poll(minutes * 60):
                raise Stalled(last)
            try:
                kind, value = ours.recv()
            except EOFError:
                process.join()
                if process.exitcode and process.exitcode < 0:
                    raise Crashed(-process.exitcode, last) from None
                raise RuntimeError(f"it ended with status {process.exitcode}") from None
            if kind == "done":
                return value
            if kind == "raised":
                raise value
            last = last if value is None else value
    finally:
        process.kill()
        process.join(5)
        if process.is_alive():
            # It waits for a disk, and cannot be ended. This one shall not wait for it at its end.
            multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]


def _run(
    work: Callable[[Callable[[Any], None]], Any], to: Connection, others: Connection, parent: int
) -> None:
    others.close()  # else it could never be told that nobody listens
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # of whoever attends, who ends this one
    try:
        result = work(lambda value: to.send(("told", value)))
    except Exception as error:
        error.add_note(traceback.format_exc())  # the way here is lost on the way there
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        to.send(("raised", error))
    else:
        to.send(("done", result))
