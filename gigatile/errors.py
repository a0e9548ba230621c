"""Errors that a user can act on, and how a command shows them."""

import errno
import sys
from collections.abc import Callable, Sequence


class UserError(Exception):
    """A mistake in the user's input or settings.

    The message names the file, the row where there is one, what was found and what would be right.
    It is shown as it stands, without a traceback.
    """


def all_faults(heading: str, faults: Sequence[str], at_most: int = 50) -> UserError:
    """Gather every fault of one file into one `UserError`, so that all are mended in one go."""
    lines = [f"  - {fault}" for fault in faults[:at_most]]
    if len(faults) > at_most:
        lines.append(f"  … and {len(faults) - at_most} more")
    return UserError("\n".join([heading, *lines]))


# What a disk says without naming the file.
_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def run_command(main: Callable[[], None]) -> None:
    """Run a command's `main`; a `UserError` ends it with status 2 and one message.

    So does a file or a disk that the system refuses: no permission, a folder in place of a file, no
    space left.
    """
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        path = error.filename2 or error.filename  # of a rename, what it was to become
        if path is None and error.errno not in _DISK_FAULTS:
            raise
        where = "" if path is None else f"{path}: "
        print(f"error: {where}{error.strerror}", file=sys.stderr)
        sys.exit(2)
