"""Progress is shown in place on a terminal, and kept now and then in a log."""

import io
import os

from gigatile.parallel.progress import KEEP_EVERY, OVERWRITE, line, to


def shown(step):
    return line(epoch=1, epochs=8, step=step, steps=50, loss=0.5, rate=120.2, left=3.4) + "\n"


def test_a_line_tells_where_how_fast_and_how_long():
    assert shown(7) == "epoch 1/8, step 7/50: loss 0.5000, 120 tiles/s, 3 s left in this epoch\n"


def test_a_terminal_shows_each_in_place_and_a_log_few():
    """A real terminal of the system's; time passes as the test says."""
    ours, theirs = os.openpty()
    log, now = io.StringIO(), 100.0
    with os.fdopen(theirs, "w") as terminal:
        tell = to((terminal, log), lambda: now)
        tell("begun\n")
        for step in range(1, 5):
            tell(shown(step))
            now += KEEP_EVERY / 2
        tell("epoch 1/8: loss 0.4\n")
        tell("ended\n")
        read = b""
        while not read.endswith(b"ended\r\n"):  # a terminal hands on what it has so far
            read += os.read(ours, 10_000)
    os.close(ours)
    text = read.decode().replace("\r\n", "\n")
    steps = OVERWRITE.join(shown(step).rstrip() for step in range(1, 5))
    assert text == f"begun\n{steps}{OVERWRITE}epoch 1/8: loss 0.4\nended\n"
    assert log.getvalue() == f"begun\n{shown(1)}{shown(3)}epoch 1/8: loss 0.4\nended\n"
