"""Only one training at a time uses a folder of checkpoints, even after a kill."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gigatile.errors import UserError
from gigatile.training import locking
from gigatile.training.locking import training_lock
from gigatile.training.ranks import Ranks


class Alone(Ranks):
    """One rank without MPI."""

    def broadcast(self, values, name):
        return values

    def sum(self, values, name):
        return values


class Thread(Ranks):
    """One of two ranks, each a thread."""

    barrier = threading.Barrier(2, timeout=30)
    value = None

    def broadcast(self, values, name):
        if self.writes:
            Thread.value = values
        self.barrier.wait()
        return Thread.value

    def sum(self, values, name):
        self.barrier.wait()
        return values


ALONE = Alone(0, 1, 1)
HOLDER = """
import fcntl, sys, time
handle = open(sys.argv[1], "w")
fcntl.flock(handle, fcntl.LOCK_EX)
print(sys.argv[2], end="", file=handle, flush=True)
print("locked", flush=True)
time.sleep(60)
"""


@pytest.fixture
def hold():
    """Lock a file in another process, which is killed at the end."""
    processes = []

    def begin(path, name):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, path, name], stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        assert process.stdout is not None and process.stdout.readline() == "locked\n"
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("rank", [0, 1, 11])
def test_training_is_refused_while_another_one_runs(tmp_path, hold, rank):
    hold(tmp_path / f"rank-{rank}.lock", "the other one")
    lines = []
    with (
        pytest.raises(
            UserError, match=r"the other one.* of another training is still running, aft"
        ),
        training_lock(tmp_path, ALONE, 0.1, lines.append),
    ):
        pytest.fail("two trainings at once")
    assert len(lines) == 1 and "waiting up to 0.1 s" in lines[0]


def test_training_waits_for_each_rank_of_the_previous_one(tmp_path, hold):
    ranks = [hold(tmp_path / f"rank-{n}.lock", f"rank {n}") for n in (0, 1)]
    lines = []

    def kill_named_rank(line):
        lines.append(line)
        ranks[len(lines) - 1].kill()

    with training_lock(tmp_path, ALONE, 100, kill_named_rank):
        assert f"process {os.getpid()} on " in (tmp_path / "rank-0.lock").read_text()
    assert ["rank 0" in lines[0], "rank 1" in lines[1], len(lines)] == [True, True, 2]


def test_lock_on_a_deleted_file_is_repeated(tmp_path, monkeypatch):
    """A training deletes the folder at its end, possibly after the next one has opened the file."""
    lock, deleted = locking.fcntl.flock, []

    def delete_first(handle, operation):
        if not deleted:
            deleted.append(Path(handle.name).unlink())
        lock(handle, operation)

    monkeypatch.setattr(locking.fcntl, "flock", delete_first)
    with (
        training_lock(tmp_path, ALONE, 10, print),
        pytest.raises(UserError, match="of another training is still running"),
        training_lock(tmp_path, ALONE, 0, print),
    ):
        pytest.fail("two trainings at once")
    assert deleted


def test_file_system_without_locks_is_reported(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(locking._NO_LOCKS[0], "No locks available")

    monkeypatch.setattr(locking.fcntl, "flock", refuse)
    lines = []
    with training_lock(tmp_path, ALONE, 0, lines.append):
        assert lines == [
            f"{tmp_path}: this file system has no locks; a second training is not noticed"
        ]


@pytest.mark.long
def test_restart_waits_for_remaining_ranks(launcher, manifest, tmp_path):
    """The launcher hangs; after rank 0 is killed, the restart still waits for rank 1."""
    arguments = launcher.train_arguments(
        manifest, tmp_path, 2, epochs=2, save_minutes=1e-6, stall_limit=1000
    )
    environment = launcher.environment | {"PYTHONUNBUFFERED": "1"}
    asleep = tmp_path / "asleep"
    asleep.mkdir()
    moment = ("--moment", "in epoch 2, step 2 of 5", "--sleep", asleep)
    command = launcher.command(2, "tests/training/programs/at_a_moment.py", *moment, *arguments)
    first = subprocess.Popen(command, env=environment, start_new_session=True)
    second = None
    limit = threading.Timer(200, lambda: [p.kill() for p in (first, second) if p])
    limit.start()
    try:
        while len(list(asleep.iterdir())) < 2:
            assert first.poll() is None, "the training ended"
            time.sleep(0.1)
        ranks = [process_of(tmp_path / f"checkpoints/rank-{rank}.lock") for rank in (0, 1)]
        # Open MPI's ranks end with their mpirun, unless it hangs.
        first.send_signal(signal.SIGSTOP)
        restart = launcher.command(2, "scripts/train.py", *arguments)
        second = subprocess.Popen(
            restart, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        for rank in (0, 1):
            lines = iter(second.stdout.readline, "")
            line = next((line for line in lines if "of another" in line or "resuming" in line), "")
            assert running(ranks[rank]), "the rank has ended: nothing is tested"
            assert f"rank {rank} (process {ranks[rank]} on {os.uname().nodename})" in line, line
            assert "resuming" not in line
            os.kill(ranks[rank], signal.SIGKILL)
        rest = second.stdout.read()
        assert second.wait() == 0, rest
        assert "resuming after epoch 1 of 2" in rest
    finally:
        limit.cancel()
        for process in (first, second):
            if process:
                with process:
                    subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=False)


def process_of(lock):
    """Return the process id in a lock file."""
    return int(lock.read_text().split("process ")[1].split()[0])


def running(process):
    return Path(f"/proc/{process}").exists()


def test_a_folder_is_deleted_after_all_ranks_have_locked_it(tmp_path, monkeypatch):
    """A slow rank would make it again."""
    lock, folder = locking._lock, tmp_path / "checkpoints"

    def slow(path):
        if path.name == "rank-1.lock" and threading.current_thread().name == "1":
            time.sleep(1)
        return lock(path)

    monkeypatch.setattr(locking, "_lock", slow)

    def train(rank):
        with training_lock(folder, Thread(rank, 2, 2), 10, print):
            if rank == 0:
                shutil.rmtree(folder)

    threads = [threading.Thread(target=train, args=(n,), name=str(n)) for n in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not folder.exists()
