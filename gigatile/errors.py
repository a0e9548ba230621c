"""Errors that a user can act on, and how a command shows them."""

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


def run_command(main: Callable[[], None]) -> None:
    """Run a command's `main`; a `UserError` ends it with status 2 and one message."""
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
