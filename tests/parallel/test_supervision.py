import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gigatile.errors import UserError
from gigatile.parallel.supervision import Crashed, Stalled, run_supervised

SHORT = 0.3 / 60  # minutes


def test_result_of_the_work_is_returned():
    assert run_supervised(lambda report: {"pid": os.getpid()}, 1)["pid"] != os.getpid()


def test_error_of_the_work_is_raised_with_its_traceback():
    def work(report):
        raise UserError("a fault of the user's")

    with pytest.raises(UserError, match="a fault of the user's") as raised:
        run_supervised(work, 1)
    assert "in work" in raised.value.__notes__[0]


def test_stalled_work_is_killed_with_its_last_report():
    def work(report):
        report({"pid": os.getpid()})
        report(None)
        time.sleep(60)

    begun = time.monotonic()
    with pytest.raises(Stalled) as stalled:
        run_supervised(work, SHORT)
    assert time.monotonic() - begun < 30
    with pytest.raises(ProcessLookupError):
        os.kill(stalled.value.last["pid"], 0)


def test_work_with_progress_may_exceed_the_limit():
    def work(report):
        for _ in range(10):
            time.sleep(SHORT * 60 / 3)
            report(None)
        return "done"

    assert run_supervised(work, SHORT) == "done"


def test_error_that_cannot_be_pickled_is_reported():
    class Odd(Exception):
        def __init__(self, first, second):
            super().__init__(f"{first} and {second}")

    def work(report):
        raise Odd(1, 2)

    with pytest.raises(RuntimeError, match="Odd: 1 and 2"):
        run_supervised(work, 1)


def test_work_that_cannot_be_killed_is_abandoned(monkeypatch):
    """Like on a disk that does not answer: the process stays, but its supervisor can exit."""
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "kill", lambda self: None)
    join = multiprocessing.process.BaseProcess.join
    monkeypatch.setattr(
        multiprocessing.process.BaseProcess, "join", lambda self, limit=None: join(self, 0.1)
    )
    with pytest.raises(Stalled) as stalled:
        run_supervised(lambda report: report(os.getpid()) or time.sleep(30), SHORT)
    assert [child.pid for child in multiprocessing.active_children()] == []
    os.kill(stalled.value.last, signal.SIGKILL)


@pytest.mark.parametrize("by", [signal.SIGSEGV, signal.SIGBUS, signal.SIGKILL])
def test_crash_of_the_work_is_reported(by):
    def work(report):
        report("so far")
        faulthandler.disable()
        os.kill(os.getpid(), by)

    with pytest.raises(Crashed) as crash:
        run_supervised(work, 1)
    assert (crash.value.by, crash.value.last) == (by.name, "so far")


def test_work_ends_if_its_supervisor_is_killed(tmp_path):
    program = f"""
import os, time
from pathlib import Path
from gigatile.parallel.supervision import run_supervised

def work(report):
    Path({str(tmp_path / "pid")!r}).write_text(str(os.getpid()))
    time.sleep(60)

run_supervised(work, 1)
"""
    supervisor = subprocess.Popen([sys.executable, "-c", program])
    until = time.monotonic() + 30
    while not (pid := (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()):
        assert time.monotonic() < until
        time.sleep(0.02)
    supervisor.kill()
    supervisor.wait()
    while "\nState:\tZ" not in _status(pid):
        assert time.monotonic() < until, "the work outlived its supervisor"
        time.sleep(0.02)


def _status(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "\nState:\tZ"
