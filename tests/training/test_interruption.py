"""Signals are recorded; the watchdog ends a rank that waits too long."""

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


def test_stalled_rank_exits_and_reports_its_step():
    process = watched("time.sleep(30)")
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (START_AGAIN, "")
    assert err.startswith(
        "rank 1 of 4 on node7: no step finished for 1 s, last in epoch 3, step 5 of 9; another "
        "rank or its node has failed or is unreachable; when restarted, the training goes on"
    )
    assert err.splitlines()[1:] == [f"rank 1 of 4 on node7 exited with status {START_AGAIN}"]
    assert EXIT_LINE.match(err.splitlines()[1])


def test_watchdog_keeps_running_ranks():
    on = watched("for n in range(20): time.sleep(0.1); dog.report_progress(str(n))")
    off = watched("dog.stop(); time.sleep(2)")
    for process in (on, off):
        assert process.communicate(timeout=20) == ("not ended\n", "")


def test_suspended_time_does_not_count():
    process = watched("print(flush=True)\nfor _ in range(6): time.sleep(0.1)")
    process.stdout.readline()
    time.sleep(0.25)  # so that it has checked once
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=20)[0] == "not ended\n"


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt"))
    return bool(mask >> (number - 1) & 1)


def test_early_signal_is_handled(manifest, tmp_path, launcher):
    arguments = launcher.train_arguments(manifest, tmp_path, ranks=1)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "scripts/train.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    start = time.monotonic()
    while not catches(process.pid, signal.SIGUSR2):
        assert process.poll() is None and time.monotonic() - start < 60
        time.sleep(0.01)
    imported = Path(f"/proc/{process.pid}/maps").read_text()
    assert "tensorflow" not in imported, "signals are handled first"
    os.kill(process.pid, signal.SIGUSR2)
    _, err = process.communicate(timeout=100)
    assert process.returncode == START_AGAIN
    assert "stopped by SIGUSR2 before the training began" in err and "Traceback" not in err
    assert not (tmp_path / "model").exists()
