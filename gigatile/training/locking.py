"""One training at a time writes into a folder: ranks of a killed launcher may still be at it."""

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from gigatile.errors import UserError

LOCK = "lock"
# Seconds between two attempts to get the lock.
PAUSE = 0.5
# What a file system without locks says.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@contextlib.contextmanager
def only_one(
    folder: Path, limit: float, tell: Callable[[str], None], alive: Callable[[str], None]
) -> Iterator[None]:
    """Keep other trainings out of a folder for the block; wait for one that is in it.

    The system gives the lock back when its process ends, however it ends; through NFS also across
    machines. On a file system without locks nothing keeps others out, which is told.

    Args:
        folder: is made where it is missing; may be gone at the end of the block.
        limit: seconds to wait.
        tell: takes lines for the user.
        alive: takes what is being done, again and again while this waits.

    Raises:
        UserError: the other one did not end in time; it is named.
    """
    path = folder / LOCK
    until, waiting = time.monotonic() + limit, False
    while True:
        try:
            handle = _locked(path)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            tell(f"{path}: this file system has no locks; nothing keeps a second training out")
            handle = path.open("a+")
        if handle:
            break
        who = _read(path) or "another process"
        if time.monotonic() > until:
            raise UserError(
                f"{folder}: {who} is still training here, after {limit:g} s of waiting for it; "
                "end it, then start this training again"
            )
        if not waiting:
            tell(f"{folder}: {who} is still training here; waiting {limit:g} s for it to end")
            waiting = True
        alive(f"while it waited for {who}")
        time.sleep(PAUSE)
    with handle:
        handle.truncate(0)
        handle.write(f"process {os.getpid()} on {socket.gethostname()}")
        handle.flush()
        yield


def _locked(path: Path) -> TextIO | None:
    """Return the file at a path, locked; None where another process has the lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = path.open("a+")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever had the lock may have deleted the file since: a lock on that keeps nobody out.
        if path.exists() and os.path.samestat(os.fstat(handle.fileno()), path.stat()):
            return handle
    except BlockingIOError:
        pass
    except OSError:
        handle.close()
        raise
    handle.close()
    return None


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""
