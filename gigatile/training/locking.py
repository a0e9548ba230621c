"""Locks on a folder of checkpoints, so that only one training uses it at a time.

If a launcher is killed, some of its ranks may keep running. So every rank of a training locks a
separate file, and a new training waits until all these locks are free.

The locks are flock(2)'s: the kernel releases them when the process ends, however it ends. On NFS
they work across machines if the server's locks are in use: with the mount options `nolock` or
`local_lock=flock`, or Lustre's `localflock`, a rank on another machine is not detected. A machine
that crashes keeps its locks until the server's lease ends (NFSv4, usually 90 s).
"""

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import numpy as np

from gigatile.errors import UserError
from gigatile.training.ranks import Ranks

# Seconds between two attempts to get the locks.
PAUSE = 0.5
# Errors of a file system that has no locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@contextlib.contextmanager
def training_lock(
    folder: Path, ranks: Ranks, limit: float, log: Callable[[str], None]
) -> Iterator[None]:
    """Lock a folder for this training during the block; first wait for another training to end.

    All ranks must call it together. If the file system has no locks, rank 0 prints a warning and
    the training starts without one.

    Args:
        folder: is created if it is missing; may be deleted within the block.
        ranks: the processes that train together.
        limit: seconds to wait.
        log: takes lines for the user, on rank 0.

    Raises:
        UserError: a process of another training has not ended within `limit`; on rank 0.
    """
    deadline, blocking = time.monotonic() + limit, ""
    with contextlib.ExitStack() as locks:
        handle: TextIO | None = None
        while True:
            before, blocking = blocking, ""
            if ranks.writes:
                try:
                    if handle is None and (handle := _lock(_file(folder, 0))):
                        locks.enter_context(handle)
                    blocking = _other_ranks(folder) if handle else _holder(_file(folder, 0))
                except OSError as error:
                    if error.errno not in _NO_LOCKS:
                        raise
                    log(
                        f"{folder}: this file system has no locks; a second training is not noticed"
                    )
            # Rank 0 broadcasts each attempt, so that no other rank reports a stall.
            if not ranks.broadcast(np.array([bool(blocking)]), "locked")[0]:
                break
            if ranks.writes and time.monotonic() > deadline:
                raise UserError(
                    f"{folder}: {blocking} of another training is still running, after a wait of "
                    f"{limit:g} s; end it, then start this training again"
                )
            if ranks.writes and blocking != before:
                log(
                    f"{folder}: {blocking} of another training is still running; waiting up to "
                    f"{limit:g} s for it to end"
                )
            ranks.report_progress("while it waited for another training to end")
            time.sleep(PAUSE)
        if not ranks.writes:
            try:
                if handle := _lock(_file(folder, ranks.rank)):
                    locks.enter_context(handle)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
        if handle is not None:
            handle.truncate(0)
            handle.write(f"rank {ranks.rank} (process {os.getpid()} on {socket.gethostname()})")
            handle.flush()
        # Only now may rank 0 delete the folder: another rank would make it again with its lock.
        ranks.sum(np.zeros(1, np.float32), "locks")
        yield


def _file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.lock"


def _other_ranks(folder: Path) -> str:
    """Return the name of a process that holds the lock of a rank other than 0, or nothing."""
    for path in sorted(folder.glob("rank-*.lock")):
        if path != _file(folder, 0):
            handle = _lock(path)
            if handle is None:
                return _holder(path)
            handle.close()
    return ""


def _lock(path: Path) -> TextIO | None:
    """Return the file at a path, locked; None if another process has locked it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = path.open("a+")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The last holder may have deleted the file meanwhile; no other process would see the lock.
        if path.exists() and os.path.samestat(os.fstat(handle.fileno()), path.stat()):
            return handle
    except BlockingIOError:
        pass
    except OSError:
        handle.close()
        raise
    handle.close()
    return None


def _holder(path: Path) -> str:
    """Return the name of the process that wrote a lock file."""
    with contextlib.suppress(OSError):
        return path.read_text() or "a process"
    return "a process"
