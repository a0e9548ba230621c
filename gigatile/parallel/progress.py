"""Progress lines: overwritten in place on a terminal, and thinned out in a log file.

A rank prints a line every second. The launcher, which knows the terminal, shows them.
"""

import re
import time
from collections.abc import Callable, Iterable
from typing import TextIO

from gigatile.files import named_in_errors

# A progress line, as `format_progress` writes it.
PROGRESS = re.compile(r"^epoch \d+/\d+, step \d+/\d+: ")
# Seconds between two progress lines of a rank, and between two of a log file.
WRITE_EVERY = 1.0
KEEP_EVERY = 10.0
# Return to the start of the line and erase it: `man 4 console_codes`.
OVERWRITE = "\r\x1b[K"


def format_progress(
    epoch: int,
    epochs: int,
    step: int,
    steps: int,
    loss: float,
    rate: float,
    left: float,
    samples: str = "tiles",
) -> str:
    """Return a progress line; `rate` is in samples per second, `left` in seconds."""
    shown = f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"
    return (
        f"epoch {epoch}/{epochs}, step {step}/{steps}: loss {loss:.4f}, {shown} {samples}/s, "
        f"{left:.0f} s left in this epoch"
    )


def progress_log(
    streams: Iterable[TextIO], clock: Callable[[], float] = time.monotonic
) -> Callable[[str], None]:
    """Return a function that writes a line to all streams.

    Progress lines overwrite each other on a terminal. Other streams get one every `KEEP_EVERY`.

    Args:
        streams: terminals and files.
        clock: returns seconds.
    """
    written = dict.fromkeys(streams, -KEEP_EVERY)
    terminals = {stream for stream in written if stream.isatty()}
    in_place: set[TextIO] = set()
    names = {stream: _path_of(stream) for stream in written}

    def log(text: str) -> None:
        progress, now = PROGRESS.match(text) is not None, clock()
        for stream, before in written.items():
            with named_in_errors(names[stream]):
                if stream in terminals:
                    start = OVERWRITE if stream in in_place else ""
                    stream.write(start + (text.rstrip("\n") if progress else text))
                    (in_place.add if progress else in_place.discard)(stream)
                elif not progress or now - before >= KEEP_EVERY:
                    stream.write(text)
                    if progress:
                        written[stream] = now
                stream.flush()

    return log


def _path_of(stream: TextIO) -> str | None:
    # Python's own streams have names such as <stdout>, a terminal may have a number.
    name = getattr(stream, "name", None)
    return name if isinstance(name, str) and not name.startswith("<") else None
