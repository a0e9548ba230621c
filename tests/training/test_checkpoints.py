"""Damaged checkpoints are skipped; a full disk is reported."""

import random
import resource
import signal

import numpy as np
import pytest

from gigatile.errors import describe_error
from gigatile.training.checkpoints import (
    Checkpoint,
    TrainingState,
    checkpoints_by_step,
    first_usable,
    save_checkpoint,
)

STATE = TrainingState(epoch=0, step=0, done=0, history=[])


def save(folder, step):
    arrays = [np.full(9, step, np.float32), np.arange(40.0).reshape(5, 8)]
    state = TrainingState(epoch=step, step=0, done=step, history=[])
    save_checkpoint(folder, step, Checkpoint("key", state, arrays))


def test_checkpoint_with_flipped_bit_is_skipped(tmp_path):
    """Every bit of the first and last headers, and 1,000 random bits: ZIP's CRCs miss many."""
    for step in (1, 2):
        save(tmp_path, step)
    newest = tmp_path / "step-000000002.npz"
    whole = newest.read_bytes()
    chosen = random.Random(4)
    offsets = [*range(60), *range(len(whole) - 86, len(whole))]
    flips = [(offset, bit) for offset in offsets for bit in range(8)]
    flips += [(chosen.randrange(len(whole)), chosen.randrange(8)) for _ in range(1000)]
    for offset, bit in flips:
        damaged = bytearray(whole)
        damaged[offset] ^= 1 << bit
        newest.write_bytes(damaged)
        warnings: list[str] = []
        checkpoint = first_usable(checkpoints_by_step(tmp_path), "key", 9, warnings.append)
        assert (checkpoint.state.epoch, checkpoint.arrays[0][0]) == (1, 1), (offset, bit)
        (warning,) = warnings
        expected = f"{newest}: damaged (its SHA-256 is not the one at its end); skipped"
        assert warning == expected, (offset, bit)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 500])
def test_truncated_checkpoint_is_skipped(tmp_path, size):
    save(tmp_path, 1)
    path = tmp_path / "step-000000001.npz"
    path.write_bytes(path.read_bytes()[:size])
    warnings: list[str] = []
    assert first_usable([path], "key", 9, warnings.append) is None
    assert len(warnings) == 1 and "damaged" in warnings[0]


def test_checkpoint_is_a_numpy_archive(tmp_path):
    save(tmp_path, 3)
    with np.load(tmp_path / "step-000000003.npz") as archive:
        assert archive["v00000"].tolist() == [3.0] * 9


@pytest.fixture
def small_files():
    """Limit files of this process to 64 kB, which simulates a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, before)


def test_full_disk_error_names_the_checkpoint(tmp_path, small_files):
    with pytest.raises(OSError) as caught:
        save_checkpoint(tmp_path, 7, Checkpoint("key", STATE, [np.zeros(50_000)]))
    assert describe_error(caught.value) == f"{tmp_path / 'step-000000007.npz'}: File too large"
    assert not list(tmp_path.iterdir())
