"""Errors that a user can act on, and how a command shows them."""

import contextlib
import errno
import os
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class UserError(Exception):
    """A mistake in the user's input or settings.

    The message names the file, the row where there is one, what was found and what would be right.
    It is shown as it stands, without a traceback.
    """


# The status of a command that did not finish and is to be called again: it was asked to stop, or
# lost one that it worked with, and goes on from where it was. It is EX_TEMPFAIL of sysexits.h.
START_AGAIN = 75


class StartAgain(Exception):
    """A command ends early through no fault, and the same command goes on. The message says why."""


def all_faults(heading: str, faults: Sequence[str], at_most: int = 50) -> UserError:
    """Gather every fault of one file into one `UserError`, so that all are mended in one go."""
    lines = [f"  - {fault}" for fault in faults[:at_most]]
    if len(faults) > at_most:
        lines.append(f"  … and {len(faults) - at_most} more")
    return UserError("\n".join([heading, *lines]))


# No space, no quota left, mounted for reading only, a device that fails.
_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
# Those that a library's own exception may name in its text; the last one is said of much else, too.
_DISK_TEXTS = tuple(map(os.strerror, _DISK_FAULTS[:-1]))


def describe_error(error: Exception) -> str | None:
    """Return what a user is told of an error; None for a bug, which is shown with its traceback.

    Told is a `UserError`, and a file or a disk that the system refuses: no permission, a folder in
    place of a file, no space left. Of a disk the message names the path and the host, in one line.
    """
    if isinstance(error, UserError):
        return str(error)
    text = " ".join(str(error).split())
    if isinstance(error, OSError):
        path = error.filename2 or error.filename  # of a rename, what it was to become
        if error.errno in _DISK_FAULTS:
            return _disk_message(os.strerror(error.errno), path)
        if path is not None:
            return f"{path}: {error.strerror}"
        if error.errno == errno.EFBIG:
            return error.strerror
        if "No usable temporary directory" in text:  # of `tempfile`, also where all are full
            return _disk_message(str(error.strerror), None)
    if any(fault in text for fault in _DISK_TEXTS):  # of TensorFlow, which names the file
        return _disk_message(text, None)
    return None


def _disk_message(fault: str, path: str | bytes | None) -> str:
    """Return one line with the path, the fault, the host and the free space.

    If the path is not known, name the folders in which the command is likely to write.
    """
    host = socket.gethostname()
    if path is not None:
        file = Path(os.fsdecode(path)).absolute()
        return f"{file}: {fault} (on {host}: {_free_space(file)})"
    folders = []
    with contextlib.suppress(OSError):
        folders.append(Path.cwd())
    with contextlib.suppress(OSError):  # no folder for temporary files can be written
        folders.append(Path(tempfile.gettempdir()))
    if asked := os.environ.get("TMPDIR"):
        folders.append(Path(asked).absolute())
    if output := _file_of_stdout():
        folders.append(output.parent)
    known = "; ".join(f"{folder}: {_free_space(folder)}" for folder in dict.fromkeys(folders))
    return f"{fault} (on {host}; {known})"


def _free_space(path: Path) -> str:
    """Return how much space is free in a folder, or in that of a file, which may not exist yet."""
    try:
        while not path.exists():
            path = path.parent
        disk = os.statvfs(path)
    except OSError as error:
        return str(error.strerror)
    # Some file systems don't count their files: 0 of 0.
    full = ", but no more files" if disk.f_files and not disk.f_favail else ""
    return f"{disk.f_bavail * disk.f_frsize / 1e6:.0f} MB free{full}"


def _file_of_stdout() -> Path | None:
    with contextlib.suppress(OSError, ValueError):  # closed, or not a file of the system
        path = Path(f"/proc/self/fd/{sys.stdout.fileno()}").readlink()
        return path if path.is_file() else None
    return None


# Characters of an unexpected error's own message that are recorded.
_MOST_OF_A_MESSAGE = 200
# What Python says of the system without an error number.
_SYSTEM_MESSAGES = ("can't start new thread", "can't allocate")


def is_resource_error(error: BaseException) -> bool:
    """Return whether an error is the system's or the user's, and not of the input that is read.

    The system's are: no memory, a disk or file that it refuses, an environment that lacks a
    module. With these the job fails, and may be tried again.
    """
    if isinstance(error, OSError):
        return error.errno is not None  # Pillow raises OSError for damaged pictures, without one
    if isinstance(error, MemoryError | ImportError | UserError | StartAgain):
        return True
    text = str(error)
    # OpenCV's code for no memory is -4.
    return getattr(error, "code", None) == -4 or any(one in text for one in _SYSTEM_MESSAGES)


def unexpected_error(error: Exception) -> str:
    """Return the reason to record for an unexpected error; print its traceback to stderr."""
    traceback.print_exception(error)
    message = " ".join(str(error).split())
    if len(message) > _MOST_OF_A_MESSAGE:
        message = f"{message[:_MOST_OF_A_MESSAGE]}…"
    kind = type(error).__name__
    return (
        f"unexpected error, please report: {kind}: {message}"
        if message
        else (f"unexpected error, please report: {kind}")
    )


def record_unexpected_error(
    error: Exception,
    give_up: Callable[[str], T],
    clean_up: Callable[[], None],
    forget: Callable[[], None],
) -> T:
    """Record an unexpected error as the reason why a slide or case cannot be used.

    Call this in the handler of the error.

    Args:
        error: what the work on the slide or case raised.
        give_up: takes the reason, writes the state and returns it.
        clean_up: removes half-written files.
        forget: discards all results so far. It is called if `give_up` fails, which may be because
            one of them cannot be written; then `give_up` is called again.

    Returns:
        What `give_up` returns.

    Raises:
        Exception: the error itself, if it is the system's or the user's (`is_resource_error`).
    """
    if is_resource_error(error):
        raise error
    reason = unexpected_error(error)
    clean_up()
    try:
        return give_up(reason)
    except Exception as second:
        if is_resource_error(second):
            raise
        forget()
        return give_up(reason)


def run_command(main: Callable[[], None]) -> None:
    """Run a command's `main`; an error that can be told ends it with status 2 and one message.

    `StartAgain` ends it with its message and with `START_AGAIN`.
    """
    try:
        try:
            main()
        except SystemExit:
            _flush_stdout()
            raise
        _flush_stdout()
    except StartAgain as stop:
        print(stop, file=sys.stderr)
        sys.exit(START_AGAIN)
    except Exception as error:
        message = describe_error(error)
        if message is None:
            raise
        with contextlib.suppress(OSError):  # a log on the disk that is full
            print(f"error: {message}", file=sys.stderr)
        with contextlib.suppress(OSError):
            _flush_stdout()
        sys.exit(2)


def _flush_stdout() -> None:
    """Write what was printed.

    Raises:
        OSError: the disk is full, or fails; it names the file. The rest is dropped: Python would
            try again as it ends, and leave with a status of its own.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in _DISK_FAULTS:
            return
        if output := _file_of_stdout():
            error.filename = str(output)
        with Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        raise
