import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigatile.records.shuffle import key64, permutation, random64


def test_numbers_equal_splitmix64():
    """The first outputs of the authors' C program for seed 1234567."""
    assert random64(1234567, np.arange(5)).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_numbers_never_change():
    assert key64("shards", 1, "S1") == 18241354503574615755
    assert permutation(10, "order", 1, 0).tolist() == [9, 8, 7, 0, 1, 5, 2, 3, 6, 4]


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 10**9), max_size=20))
def test_number_depends_on_key_and_counter_only(key, counters):
    together = random64(key, np.array(counters, np.int64))
    alone = [int(random64(key, np.array([counter]))[0]) for counter in counters]
    assert together.dtype == np.uint64
    assert together.tolist() == alone


@given(st.integers(0, 300), st.integers(0, 10**6))
def test_permutation_has_every_number_once(n, seed):
    numbers = permutation(n, "order", seed)
    assert sorted(numbers.tolist()) == list(range(n))
    assert numbers.tolist() == permutation(n, "order", seed).tolist()


def test_parts_of_a_key_are_separated():
    keys = {key64("a", "bc"), key64("ab", "c"), key64("abc"), key64("a", 1, 2), key64("a", 12)}
    assert len(keys) == 5


def test_numbers_are_uniform():
    numbers = np.concatenate(
        [random64(key64("shards", 1, f"S{n}"), np.arange(100)) for n in range(500)]
    )
    counts = np.bincount((numbers >> np.uint64(60)).astype(int), minlength=16)
    assert len(np.unique(numbers)) == len(numbers)
    # Five standard deviations of a binomial count.
    assert np.abs(counts - 50_000 / 16).max() < 5 * (50_000 / 16 * 15 / 16) ** 0.5


@pytest.mark.parametrize("seed", [1, 2])
def test_neighbours_are_separated(seed):
    order = permutation(2000, "order", seed)
    assert (np.abs(np.diff(order)) == 1).sum() < 15
