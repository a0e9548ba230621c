"""Progress lines on a terminal and in a log file."""

import io
import os

from gigatile.parallel.progress import KEEP_EVERY, OVERWRITE, format_progress, progress_log


def shown(step):
    return (
        format_progress(epoch=1, epochs=8, step=step, steps=50, loss=0.5, rate=120.2, left=3.4)
        + "\n"
    )


def test_line_has_position_rate_and_time_left():
    assert shown(7) == "epoch 1/8, step 7/50: loss 0.5000, 120 tiles/s, 3 s left in this epoch\n"


def test_terminal_overwrites_lines_and_log_keeps_few():
    """On a real pseudo-terminal, with a fake clock."""
    reading_end, writing_end = os.openpty()
    file, now = io.StringIO(), 100.0
    with os.fdopen(writing_end, "w") as terminal:
        log = progress_log((terminal, file), lambda: now)
        log("begun\n")
        for step in range(1, 5):
            log(shown(step))
            now += KEEP_EVERY / 2
        log("epoch 1/8: loss 0.4\n")
        log("ended\n")
        read = b""
        while not read.endswith(b"ended\r\n"):  # a terminal returns what it has so far
            read += os.read(reading_end, 10_000)
    os.close(reading_end)
    text = read.decode().replace("\r\n", "\n")
    steps = OVERWRITE.join(shown(step).rstrip() for step in range(1, 5))
    assert text == f"begun\n{steps}{OVERWRITE}epoch 1/8: loss 0.4\nended\n"
    assert file.getvalue() == f"begun\n{shown(1)}{shown(3)}epoch 1/8: loss 0.4\nended\n"
