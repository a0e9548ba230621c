"""A signal is remembered and no more; who waits too long leaves."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from gigatile.errors import START_AGAIN
from gigatile.parallel.interruption import EXIT_LINE

ROOT = Path(__file__).parents[2]
WATCHED = """
import sys, time
from gigatile.parallel.interruption import Watchdog
dog = Watchdog(1.0, "rank 1 of 4 on node7", "the training goes on")
dog.report_progress("in epoch 3, step 5 of 9")
{}
print("not ended")
"""


def watched(then: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", WATCHED.format(then)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_who_waits_too_long_leaves_and_says_where_it_was():
    process = watched("time.sleep(30)")
    out, told = process.communicate(timeout=20)
    assert (process.returncode, out) == (START_AGAIN, "")
    assert told.startswith(
        "rank 1 of 4 on node7: no step finished for 1 s, last in epoch 3, step 5 of 9; another "
        "rank or its node has failed or is unreachable; when restarted, the training goes on"
    )
    assert told.splitlines()[1:] == [f"rank 1 of 4 on node7 exited with status {START_AGAIN}"]
    assert EXIT_LINE.match(told.splitlines()[1])


def test_who_gets_on_or_is_off_stays():
    on = watched("for n in range(20): time.sleep(0.1); dog.report_progress(str(n))")
    off = watched("dog.stop(); time.sleep(2)")
    for process in (on, off):
        assert process.communicate(timeout=20) == ("not ended\n", "")


def test_time_in_which_the_process_itself_was_suspended_does_not_count():
    process = watched("print(flush=True)\nfor _ in range(6): time.sleep(0.1)")
    process.stdout.readline()
    time.sleep(0.25)  # so that it has looked once
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=20)[0] == "not ended\n"


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt"))
    return bool(mask >> (number - 1) & 1)


def test_a_signal_of_the_first_seconds_is_heard(manifest, tmp_path, launcher):
    arguments = launcher.train_arguments(manifest, tmp_path, ranks=1)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "scripts/train.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    begun = time.monotonic()
    while not catches(process.pid, signal.SIGUSR2):
        assert process.poll() is None and time.monotonic() - begun < 60
        time.sleep(0.01)
    imported = Path(f"/proc/{process.pid}/maps").read_text()
    assert "tensorflow" not in imported, "handlers come first"
    os.kill(process.pid, signal.SIGUSR2)
    _, told = process.communicate(timeout=100)
    assert process.returncode == START_AGAIN
    assert "stopped by SIGUSR2 before the training began" in told and "Traceback" not in told
    assert not (tmp_path / "model").exists()
