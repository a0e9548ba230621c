"""The launcher of the ranks on a laptop: output, status, signals. `nice` stands in for `mpirun`.

It takes `-n`, too, and then runs its command once. What SLURM adds is in tests/cluster.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gigatile.parallel.launch import OUT_OF_MEMORY

ROOT = Path(__file__).parents[2]


def line(folder, *command, launcher="nice"):
    return [
        *(sys.executable, ROOT / "scripts/launch.py", "--launcher", launcher),
        *("--nodes", "1", "--ranks-per-node", "2", "--cores", "1", "--log", folder / "log"),
        *("--checkpoints", folder / "checkpoints", "--", *command),
    ]


@pytest.fixture
def launch(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    def run(*command, **options):
        return subprocess.run(
            line(tmp_path, *command, **options), capture_output=True, text=True, timeout=60
        )

    return run


@pytest.mark.parametrize("status", [0, 1, 2, 75])
def test_the_status_is_that_of_the_ranks(launch, status):
    assert launch("sh", "-c", f"exit {status}").returncode == status


def test_a_rank_that_a_signal_ended_has_a_shells_status(launch):
    assert launch("sh", "-c", "kill -KILL $$").returncode == 137


def test_a_signal_has_its_name(launch):
    done = launch("sh", "-c", "kill -SEGV $$")
    assert done.returncode == 139
    assert "a rank was ended by signal 11 (segmentation fault)" in done.stdout


@pytest.mark.parametrize(
    "line",
    [
        "srun: error: n1: task 0: Out Of Memory",
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=4.0. Some of your processes",
    ],
)
def test_slurms_words_for_too_little_memory(line):
    assert OUT_OF_MEMORY.match(line)
    assert not OUT_OF_MEMORY.match(f"rank 0 says: {line}")


def test_what_ranks_say_is_shown_and_kept(launch, tmp_path):
    done = launch("sh", "-c", "echo spoken; echo complained >&2; exit 75")
    kept = (tmp_path / "log").read_text()
    assert kept == done.stdout
    assert kept.splitlines()[:2] == ["spoken", "complained"]
    assert "run again, it goes on" in kept


def test_what_a_rank_says_of_its_end_goes_before_the_launchers_status(launch):
    """A launcher may report the rank that it killed because of it."""
    last = "echo rank 1 of 2 on n1 left with status"
    assert launch("sh", "-c", f"{last} 75; {last} 2; exit 143").returncode == 2
    assert launch("sh", "-c", f"{last} 75; exit 0").returncode == 75


def test_a_launcher_that_waits_on_after_a_rank_has_left_is_ended(launch, tmp_path):
    """As `srun` does for one on a node whose network is cut."""
    program = (
        "import sys; from pathlib import Path; from gigatile.parallel import launch as l\n"
        "l.LEAVE_LIMIT = 1\n"
        "ranks = ['sh', '-c', 'echo rank 0 of 2 on n1 left with status 75; sleep 600 & wait']\n"
        f"out = Path({str(tmp_path)!r})\n"
        "sys.exit(l.launch('nice', l.Layout(1, 2, 1), ranks, out / 'log', out / 'checkpoints'))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60)
    assert done.returncode == 75
    assert "the launcher has not ended 1 s after a rank" in (tmp_path / "log").read_text()


def test_a_launcher_that_is_not_there_is_named(launch):
    done = launch("true", launcher="no-such-launcher")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "no-such-launcher" in done.stderr and "resource `launcher`" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_a_signal_asks_the_ranks_to_save(tmp_path, number):
    """They would not hear of SIGTERM in time: `mpirun` and `srun` end them for it."""
    program = "trap 'echo asked; exit 75' USR2; echo ready; while :; do sleep 0.1; done"
    process = subprocess.Popen(line(tmp_path, "bash", "-c", program), stdout=subprocess.PIPE)
    deadline = time.monotonic() + 30
    while "ready" not in ((tmp_path / "log").read_text() if (tmp_path / "log").exists() else ""):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(30) == 75
    assert "asked" in (tmp_path / "log").read_text()
