"""The launcher of ranks on a laptop: output, status, signals.

Most tests use `nice` as `mpirun`: it also accepts `-n`, and runs its command once. What SLURM
adds is in tests/cluster.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gigatile.parallel.launch import OUT_OF_MEMORY
from gigatile.parallel.memory import oom_kills

ROOT = Path(__file__).parents[2]
# The last line of a rank that exits early, without the status.
LAST = "echo rank 1 of 2 on n1 exited with status"


def line(folder, *command, launcher="nice", ranks=2):
    return [
        *(sys.executable, ROOT / "scripts/launch.py", "--launcher", launcher),
        *("--nodes", "1", "--ranks-per-node", str(ranks), "--cores", "1", "--log", folder / "log"),
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
def test_status_is_that_of_the_ranks(launch, status):
    assert launch("sh", "-c", f"exit {status}").returncode == status


def test_killed_rank_has_the_status_of_a_shell(launch):
    assert launch("sh", "-c", "kill -KILL $$").returncode == 137


def test_signal_is_named(launch):
    done = launch("sh", "-c", "kill -SEGV $$")
    assert done.returncode == 139
    assert "a rank was killed by signal 11 (segmentation fault)" in done.stdout


@pytest.mark.parametrize(
    "line",
    [
        "srun: error: n1: task 0: Out Of Memory",
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=4.0. Some of your processes",
    ],
)
def test_out_of_memory_lines_of_slurm(line):
    assert OUT_OF_MEMORY.match(line)
    assert not OUT_OF_MEMORY.match(f"rank 0 says: {line}")


def test_output_of_ranks_is_printed_and_logged(launch, tmp_path):
    done = launch("sh", "-c", "echo spoken; echo complained >&2; exit 75")
    kept = (tmp_path / "log").read_text()
    assert kept == done.stdout
    assert kept.splitlines()[:2] == ["spoken", "complained"]
    assert "run the same command again to resume" in kept


def test_exit_line_overrides_the_launcher_status(launch):
    """The launcher may return the status of a rank that it killed afterwards."""
    assert launch("sh", "-c", f"{LAST} 75; {LAST} 2; exit 143").returncode == 2
    assert launch("sh", "-c", f"{LAST} 75; exit 0").returncode == 75


def test_launcher_that_outlives_a_rank_is_killed(launch, tmp_path):
    """Like `srun` if the network of a node is cut."""
    program = (
        "import sys; from pathlib import Path; from gigatile.parallel import launch as l\n"
        "l.EXIT_LIMIT = 1\n"
        "ranks = ['sh', '-c', 'echo rank 0 of 2 on n1 exited with status 75; sleep 600 & wait']\n"
        f"out = Path({str(tmp_path)!r})\n"
        "sys.exit(l.launch('nice', l.Layout(1, 2, 1), ranks, out / 'log', out / 'checkpoints'))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60)
    assert done.returncode == 75
    assert "the launcher is still running 1 s after a rank exited" in (tmp_path / "log").read_text()


def test_missing_launcher_is_named(launch, tmp_path):
    done = launch("true", launcher="no-such-launcher")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "no-such-launcher" in done.stderr and "resource `launcher`" in done.stderr
    assert (tmp_path / "log").read_text() == done.stderr


@pytest.fixture
def in_a_job(tmp_path, monkeypatch):
    """Return a function that launches in a job of a fake SLURM; see the file `requeued`."""
    scripts = {
        "squeue": f"printf '7\\tRUNNING\\trule_train_wildcards_1\\tn1\\t{tmp_path}\\n'",
        # SLURM ends a job after it requeued it.
        "scontrol": "[ $1 = show ] && echo Restarts=0 && exit\n"
        "echo >>requeued; (sleep 0.5; kill -TERM $PPID) >/dev/null 2>&1 &",
    }
    for name, text in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\ncd {tmp_path}\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")

    def run(said, kills=(0, 0)):
        program = (
            "import sys; from pathlib import Path; from gigatile.parallel import launch as l\n"
            f"l.slurm.state_of = lambda job: 'RUNNING'; l.oom_kills = iter({kills}).__next__\n"
            f"ranks, out = ['sh', '-c', {said!r}], Path({str(tmp_path)!r})\n"
            "sys.exit(l.launch('nice', l.Layout(1, 2, 1), ranks, out / 'log', out / 'checkpoints'))"
        )
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60)
        return done.returncode, (tmp_path / "requeued").exists()

    return run


@pytest.mark.parametrize(
    ("said", "kills"),
    [
        ("echo 'srun: error: n1: task 0: Out Of Memory'; exit 137", (0, 0)),
        ("exit 137", (3, 4)),  # by `mpirun`
    ],
)
def test_training_out_of_memory_fails(in_a_job, said, kills):
    assert in_a_job(said, kills) == (137, False)


def test_killed_training_is_requeued(in_a_job):
    assert in_a_job("exit 137", (3, 3)) == (-signal.SIGTERM, True)


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("0::/job_7/task_0", "sys/fs/cgroup/job_7/task_0/memory.events"),
        ("4:memory:/job_7", "sys/fs/cgroup/memory/job_7/memory.oom_control"),
    ],
)
def test_oom_kills_are_counted(tmp_path, line, file):
    assert oom_kills(tmp_path) == 0
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"5:cpu:/other\n{line}\n")
    assert oom_kills(tmp_path) == 0
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("oom 9\noom_kill 2\noom_group_kill 5\n")
    assert oom_kills(tmp_path) == 2


def await_ready(folder):
    log, deadline = folder / "log", time.monotonic() + 60
    while not (log.exists() and "ready" in log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_signal_makes_the_ranks_save(tmp_path, number):
    """As STOP, since `mpirun` and `srun` end the ranks on SIGTERM."""
    program = "trap 'echo asked; exit 75' USR2; echo ready; while :; do sleep 0.1; done"
    command = line(tmp_path, "bash", "-c", program)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        await_ready(tmp_path)
        process.send_signal(number)
        assert process.wait(30) == 75
    assert "asked" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("ranks", [1, 2])
def test_stopped_mpirun_is_not_a_bug(tmp_path, ranks):
    """`mpirun` then exits with status 1, like after a bug."""
    ready = [sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(60)"]
    command = line(tmp_path, *ready, launcher="mpirun", ranks=ranks)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        await_ready(tmp_path)
        mpirun = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(mpirun) == 1
        os.kill(int(mpirun[0]), signal.SIGTERM)
        assert process.wait(60) == 75
    log = (tmp_path / "log").read_text()
    assert "a signal from outside stopped mpirun (status 1); no rank reported an error" in log
    assert "run the same command again to resume" in log


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "command",
    [[sys.executable, "-c", "raise RuntimeError"], ["sh", "-c", f"{LAST} 1; exit 1"]],
    ids=["traceback", "last line"],
)
def test_failed_rank_under_mpirun_is_a_bug(launch, command, ranks):
    done = launch(*command, launcher="mpirun", ranks=ranks)
    assert done.returncode == 1 and "from outside" not in done.stdout, done.stdout


def test_mpirun_that_cannot_start_ranks_fails(launch):
    done = launch("true", launcher="mpirun --no-such-option")
    assert done.returncode not in (0, 75) and "from outside" not in done.stdout, done.stdout
    # Two ranks on one slot: status 1, and a message of mpirun.
    done = launch("true", launcher="mpirun --host localhost:1 --map-by slot:NOOVERSUBSCRIBE")
    assert done.returncode == 1 and "not enough slots" in done.stdout, done.stdout
