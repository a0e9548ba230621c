"""The order of samples is a pure function with the properties that training relies on."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gigatile.training.order import (
    VIEWS,
    batch_slice,
    epoch_order,
    epoch_views,
    show,
    steps_per_epoch,
)

sizes = st.integers(1, 300)
seeds = st.integers(0, 2**31)


@given(sizes, seeds, st.integers(0, 50))
def test_every_sample_once_per_epoch(n, seed, epoch):
    assert sorted(epoch_order(n, seed, epoch)) == list(range(n))


@given(sizes, seeds, st.sampled_from([1, 2, 4]), st.integers(1, 8))
def test_ranks_share_the_same_batches(n, seed, ranks, per_rank):
    """Put together, the ranks' parts are what a single rank would have had."""
    order, size = epoch_order(n, seed, 0), ranks * per_rank
    shown = []
    for step in range(steps_per_epoch(n, size)):
        whole = batch_slice(order, step, size, 0, 1)
        parts = [batch_slice(order, step, size, rank, ranks) for rank in range(ranks)]
        assert {len(part.records) for part in parts} == {per_rank}
        np.testing.assert_array_equal(np.concatenate([p.records for p in parts]), whole.records)
        np.testing.assert_array_equal(np.concatenate([p.weights for p in parts]), whole.weights)
        assert {part.total for part in parts} == {int(whole.weights.sum())}
        shown += whole.records[whole.weights > 0].tolist()
    np.testing.assert_array_equal(shown, order)


def test_a_batch_size_that_ranks_cannot_share_is_refused():
    try:
        batch_slice(np.arange(5), 0, 5, 0, 2)
    except ValueError as error:
        assert "5" in str(error) and "2" in str(error)
    else:
        raise AssertionError("a batch of 5 was divided among 2 ranks")


def test_epochs_and_seeds_differ():
    orders = [tuple(epoch_order(100, seed, epoch)) for seed in range(5) for epoch in range(5)]
    assert len(set(orders)) == 25


def test_the_order_is_the_same_on_every_machine():
    """Frozen: another order would be another result of the same settings."""
    assert epoch_order(8, 1, 0).tolist() == [7, 0, 1, 5, 2, 3, 6, 4]
    assert epoch_views(8, 1, 0).tolist() == [1, 5, 5, 5, 1, 2, 4, 0]


def test_every_position_is_equally_likely():
    """Chi-square over where sample 0 lands; a biased shuffle fails by far."""
    places = np.bincount([int(np.argmin(epoch_order(10, 0, e))) for e in range(5000)], minlength=10)
    assert ((places - 500) ** 2 / 500).sum() < 27.9  # 99.9 % point at 9 degrees of freedom


def test_views_are_the_eight_symmetries():
    image = np.arange(27).reshape(3, 3, 3)
    shown = [show(image, view) for view in range(VIEWS)]
    np.testing.assert_array_equal(shown[0], image)
    assert len({one.tobytes() for one in shown}) == VIEWS
    for one in shown:
        assert sorted(one[:, :, 0].ravel()) == sorted(image[:, :, 0].ravel())


def test_views_are_spread_and_new_in_every_epoch():
    counts = np.bincount(epoch_views(8000, 3, 0), minlength=VIEWS)
    assert counts.min() > 850 and counts.max() < 1150
    assert (epoch_views(8000, 3, 0) == epoch_views(8000, 3, 1)).mean() < 0.2
