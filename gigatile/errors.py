"""Errors that a user can act on, and how a command shows them."""

import errno
import sys
import traceback
from collections.abc import Callable, Sequence


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


# What a disk says without naming the file.
_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def told(error: Exception) -> str | None:
    """Return what a user is told of an error; None for a bug, which is shown with its traceback.

    Told is a `UserError`, and a file or a disk that the system refuses: no permission, a folder in
    place of a file, no space left.
    """
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        path = error.filename2 or error.filename  # of a rename, what it was to become
        if path is not None or error.errno in _DISK_FAULTS:
            return f"{'' if path is None else f'{path}: '}{error.strerror}"
    return None


# Characters of an unexpected error's own message that are recorded.
_MOST_OF_A_MESSAGE = 200
# What Python says of the system without an error number.
_SYSTEM_MESSAGES = ("can't start new thread", "can't allocate")


def is_systems(error: BaseException) -> bool:
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


def unexpected(error: Exception) -> str:
    """Return what is recorded of an error that nobody foresaw; its traceback goes to stderr."""
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


def run_command(main: Callable[[], None]) -> None:
    """Run a command's `main`; an error that can be told ends it with status 2 and one message.

    `StartAgain` ends it with its message and with `START_AGAIN`.
    """
    try:
        main()
    except StartAgain as stop:
        print(stop, file=sys.stderr)
        sys.exit(START_AGAIN)
    except Exception as error:
        message = told(error)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        sys.exit(2)
