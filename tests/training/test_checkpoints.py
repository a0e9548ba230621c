"""A checkpoint is whole or passed over, and one training at a time writes them."""

import random
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from clones import ROOT

from gigatile.errors import UserError, told
from gigatile.training.checkpoints import furthest_checkpoint, newest_first, save_checkpoint
from gigatile.training.locking import only_one


def save(folder, step):
    arrays = [np.full(9, step, np.float32), np.arange(40.0).reshape(5, 8)]
    save_checkpoint(folder, step, "mine", {"epoch": step, "step": 0, "done": step}, arrays)


def test_no_flipped_bit_is_accepted_and_the_older_checkpoint_is_taken(tmp_path):
    """Each bit of the first and last headers, and 1,000 at random: as ZIP's CRCs leave many out."""
    for step in (1, 2):
        save(tmp_path, step)
    newest = tmp_path / "step-000000002.npz"
    whole = newest.read_bytes()
    chosen = random.Random(4)
    places = [*range(60), *range(len(whole) - 86, len(whole))]
    flips = [(place, bit) for place in places for bit in range(8)]
    flips += [(chosen.randrange(len(whole)), chosen.randrange(8)) for _ in range(1000)]
    for place, bit in flips:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << bit
        newest.write_bytes(damaged)
        warnings: list[str] = []
        state, (first, _) = furthest_checkpoint(newest_first(tmp_path), "mine", 9, warnings.append)
        assert (state["epoch"], first[0]) == (1, 1), (place, bit)
        (warning,) = warnings
        assert warning == (
            f"{newest}: damaged (its SHA-256 is not the one at its end), passed over"
        ), (place, bit)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 500])
def test_a_checkpoint_that_was_cut_is_passed_over(tmp_path, size):
    save(tmp_path, 1)
    path = tmp_path / "step-000000001.npz"
    path.write_bytes(path.read_bytes()[:size])
    warnings: list[str] = []
    assert furthest_checkpoint([path], "mine", 9, warnings.append) is None
    assert len(warnings) == 1 and "damaged" in warnings[0]


def test_a_checkpoint_is_a_numpy_archive(tmp_path):
    save(tmp_path, 3)
    with np.load(tmp_path / "step-000000003.npz") as archive:
        assert archive["v00000"].tolist() == [3.0] * 9


@pytest.fixture
def small_files():
    """Let this process write files of 64 kB at most, as a disk that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, before)


def test_a_disk_without_room_for_a_checkpoint_is_told_with_its_file(tmp_path, small_files):
    with pytest.raises(OSError) as caught:
        save_checkpoint(tmp_path, 7, "mine", {}, [np.zeros(50_000)])
    assert told(caught.value) == f"{tmp_path / 'step-000000007.npz'}: File too large"
    assert not list(tmp_path.iterdir())


HOLDER = """
import sys, time
from pathlib import Path
from gigatile.training.locking import only_one
with only_one(Path(sys.argv[1]), 0, print, print):
    print("in", flush=True)
    time.sleep(60)
"""


def test_a_training_waits_for_the_one_before_and_names_it(tmp_path):
    """The lock is the process's: killed, it gives it back, and whoever waits goes on."""
    folder = tmp_path / "checkpoints"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, folder], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "in\n"
    lines: list[str] = []
    with (
        pytest.raises(UserError, match=f"process {holder.pid} on .* is still training here, after"),
        only_one(folder, 0.1, lines.append, lines.append),
    ):
        pytest.fail("two were in")
    assert "waiting 0.1 s for it to end" in lines[0]

    def kill(_):
        holder.kill()
        holder.wait()

    begun = time.monotonic()
    with only_one(folder, 100, lines.append, kill):
        assert time.monotonic() - begun < 100
        assert "process" in (folder / "lock").read_text()


def test_a_lock_on_a_deleted_file_keeps_nobody_out_and_is_taken_anew(tmp_path):
    with only_one(tmp_path, 0, print, print):
        (tmp_path / "lock").unlink()
        with only_one(tmp_path, 0, print, print):
            pass
