"""A checkpoint is whole, or it is skipped."""

import random
import resource
import signal

import numpy as np
import pytest

from gigatile.errors import describe_error
from gigatile.training.checkpoints import first_usable, furthest_first, save_checkpoint


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
        state, (first, _) = first_usable(furthest_first(tmp_path), "mine", 9, warnings.append)
        assert (state["epoch"], first[0]) == (1, 1), (place, bit)
        (warning,) = warnings
        assert warning == (f"{newest}: damaged (its SHA-256 is not the one at its end); skipped"), (
            place,
            bit,
        )


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 500])
def test_a_checkpoint_that_was_cut_is_passed_over(tmp_path, size):
    save(tmp_path, 1)
    path = tmp_path / "step-000000001.npz"
    path.write_bytes(path.read_bytes()[:size])
    warnings: list[str] = []
    assert first_usable([path], "mine", 9, warnings.append) is None
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
    assert describe_error(caught.value) == f"{tmp_path / 'step-000000007.npz'}: File too large"
    assert not list(tmp_path.iterdir())
