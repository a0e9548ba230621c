"""Errors that a user can fix, and how a command reports them."""

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
    """An error in the user's input or settings.

    The message names the file, the row if there is one, the value found and the value expected. It
    is printed without a traceback.
    """


# Exit status of a command that stopped early and resumes when it is run again: it received a
# signal, or lost another rank. It is EX_TEMPFAIL of sysexits.h.
START_AGAIN = 75


class StartAgain(Exception):
    """A command stops early without an error. Run again, it resumes. The message says why."""


def all_faults(heading: str, faults: Sequence[str], at_most: int = 50) -> UserError:
    """Return one `UserError` that lists all faults of a file, so that all can be fixed at once."""
    lines = [f"  - {fault}" for fault in faults[:at_most]]
    if len(faults) > at_most:
        lines.append(f"  … and {len(faults) - at_most} more")
    return UserError("\n".join([heading, *lines]))


# No space left, quota exceeded, mounted read-only, I/O error of the device.
_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
# Texts by which they are recognised in the exceptions of libraries. EIO's text is too general.
_DISK_TEXTS = tuple(map(os.strerror, _DISK_FAULTS[:-1]))


def describe_error(error: Exception) -> str | None:
    """Return the message for an error; None for a bug, which is shown with its traceback.

    There is a message for a `UserError` and for an error of the file system: permission denied, a
    folder instead of a file, no space left. If the disk is the cause, the message also names the
    host and the free space.
    """
    if isinstance(error, UserError):
        return str(error)
    text = " ".join(str(error).split())
    if isinstance(error, OSError):
        path = error.filename2 or error.filename  # of a rename, the target
        if error.errno in _DISK_FAULTS:
            return _disk_message(os.strerror(error.errno), path)
        if path is not None:
            return f"{path}: {error.strerror}"
        if error.errno == errno.EFBIG:
            return error.strerror
        if "No usable temporary directory" in text:  # from `tempfile`, also if all disks are full
            return _disk_message(str(error.strerror), None)
    if any(fault in text for fault in _DISK_TEXTS):  # from TensorFlow, with the file name
        return _disk_message(text, None)
    return None


def _disk_message(fault: str, path: str | bytes | None) -> str:
    """Return one line with the path, the fault, the host and the free space.

    If the path is unknown, name the folders that the command is likely to write to.
    """
    host = socket.gethostname()
    if path is not None:
        file = Path(os.fsdecode(path)).absolute()
        return f"{file}: {fault} (on {host}: {_free_space(file)})"
    folders = []
    with contextlib.suppress(OSError):
        folders.append(Path.cwd())
    with contextlib.suppress(OSError):  # no temporary folder is writable
        folders.append(Path(tempfile.gettempdir()))
    if tmpdir := os.environ.get("TMPDIR"):
        folders.append(Path(tmpdir).absolute())
    if output := _file_of_stdout():
        folders.append(output.parent)
    space = "; ".join(f"{folder}: {_free_space(folder)}" for folder in dict.fromkeys(folders))
    return f"{fault} (on {host}; {space})"


def _free_space(path: Path) -> str:
    """Return the free space at a path, which need not exist yet."""
    try:
        while not path.exists():
            path = path.parent
        disk = os.statvfs(path)
    except OSError as error:
        return str(error.strerror)
    # Some file systems report no inode counts: 0 of 0.
    full = ", but no more files" if disk.f_files and not disk.f_favail else ""
    return f"{disk.f_bavail * disk.f_frsize / 1e6:.0f} MB free{full}"


def _file_of_stdout() -> Path | None:
    with contextlib.suppress(OSError, ValueError):  # closed, or not an open file of the system
        path = Path(f"/proc/self/fd/{sys.stdout.fileno()}").readlink()
        return path if path.is_file() else None
    return None


# Recorded length of the message of an unexpected error, in characters.
_MAX_MESSAGE = 200
# Messages for missing resources that Python raises without an error number.
_RESOURCE_MESSAGES = ("can't start new thread", "can't allocate")


def is_resource_error(error: BaseException) -> bool:
    """Return whether an error comes from the system or the user, not from the data that is read.

    Examples are too little memory, a full disk, a missing file and a missing Python module. Then
    the job fails and may be tried again; otherwise the slide or case is recorded as unusable.
    """
    if isinstance(error, OSError):
        return error.errno is not None  # Pillow raises OSError without errno for damaged images
    if isinstance(error, MemoryError | ImportError | UserError | StartAgain):
        return True
    text = str(error)
    # OpenCV's code for out of memory is -4.
    return getattr(error, "code", None) == -4 or any(part in text for part in _RESOURCE_MESSAGES)


def unexpected_error(error: Exception) -> str:
    """Return the reason to record for an unexpected error; print its traceback to stderr."""
    traceback.print_exception(error)
    message = " ".join(str(error).split())
    if len(message) > _MAX_MESSAGE:
        message = f"{message[:_MAX_MESSAGE]}…"
    kind = type(error).__name__
    return f"unexpected error, please report: {kind}" + (f": {message}" if message else "")


def record_unexpected_error(
    error: Exception,
    give_up: Callable[[str], T],
    clean_up: Callable[[], None],
    forget: Callable[[], None],
) -> T:
    """Record an unexpected error as the reason why a slide or case cannot be used.

    Call this in the handler of the error.

    Args:
        error: the exception.
        give_up: takes the reason, writes the state and returns it.
        clean_up: removes partial files.
        forget: discards all results so far. If `give_up` raises, perhaps because one of them cannot
            be written, they are discarded and `give_up` is called again.

    Returns:
        What `give_up` returns.

    Raises:
        Exception: the error itself if `is_resource_error`.
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
    """Run a command's `main` and set the exit status.

    An error with a message (see `describe_error`) exits with status 2 and the message. `StartAgain`
    exits with `START_AGAIN`.
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
        with contextlib.suppress(OSError):  # stderr may be a log on the full disk
            print(f"error: {message}", file=sys.stderr)
        with contextlib.suppress(OSError):
            _flush_stdout()
        sys.exit(2)


def _flush_stdout() -> None:
    """Flush stdout.

    Raises:
        OSError: the disk is full or fails; names the file. The rest of the output is dropped:
            otherwise Python would flush again at exit and change the exit status.
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
