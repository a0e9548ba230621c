"""The sample order is a pure function with the properties that training needs."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gigatile.settings.view_names import VIEWS
from gigatile.training.sample_order import Epoch, Sampling, window_bounds
from gigatile.views import apply_view

WEIGHTS = [Fraction(text) for text in ("0", "0.5", "1", "1.25", "2", "2.2")]
counts = st.lists(
    st.lists(st.integers(0, 40), min_size=2, max_size=2), min_size=1, max_size=6
).filter(lambda rows: sum(map(sum, rows)) > 0)


@st.composite
def samplings(draw, boosted=None):
    rows = np.array(draw(counts))
    boost = (
        draw(st.tuples(*[st.sampled_from(WEIGHTS)] * rows.shape[1]))
        if boosted or (boosted is None and draw(st.booleans()))
        else ()
    )
    return Sampling(
        counts=rows,
        seed=draw(st.integers(0, 2**31)),
        window=draw(st.integers(1, 4)),
        boost=boost,
        views=tuple(draw(st.lists(st.integers(0, 7), max_size=3, unique=True))),
    )


def classes_of(sampling):
    """Return the function from a shard to the classes of its records."""

    def in_shard(shard):
        first, second = sampling.counts[shard]
        classes = np.repeat([0, 1], [first, second])
        return np.random.default_rng(shard).permutation(classes)

    return in_shard


def epoch_of(sampling, number):
    return Epoch(sampling, number, classes_of(sampling))


def classes(sampling):
    shards = range(len(sampling.counts))
    return np.concatenate([classes_of(sampling)(shard) for shard in shards])


def whole(sampling, number):
    epoch = epoch_of(sampling, number)
    assert len(epoch.samples(0, len(epoch)).records) == len(epoch)
    return epoch.samples(0, len(epoch))


@given(samplings(boosted=False), st.integers(0, 50))
def test_epoch_shows_every_record_once_per_view(sampling, number):
    shown = whole(sampling, number)
    records = np.arange(sampling.counts.sum())
    if sampling.views:
        pairs = sorted(zip(shown.records.tolist(), shown.views.tolist(), strict=True))
        assert pairs == sorted((record, view) for record in records for view in sampling.views)
    else:
        np.testing.assert_array_equal(np.sort(shown.records), records)


@given(samplings(boosted=True), st.integers(0, 50))
def test_boosted_class_is_repeated_exactly(sampling, number):
    """Within one repetition per epoch; exactly over a cycle of epochs."""
    passes, labels = max(1, len(sampling.views)), classes(sampling)
    weights = np.array([float(weight) for weight in sampling.boost])[labels]
    cycle = math.lcm(*(weight.denominator for weight in sampling.boost))
    total = np.zeros(len(labels))
    for epoch in range(number, number + cycle):
        times = np.bincount(whole(sampling, epoch).records, minlength=len(labels)) / passes
        assert ((times == np.floor(weights)) | (times == np.ceil(weights))).all()
        total += times
    np.testing.assert_array_equal(total, [int(sampling.boost[label] * cycle) for label in labels])


@given(samplings(), st.integers(0, 9), st.sampled_from([1, 2, 4]), st.integers(1, 8))
def test_ranks_share_the_same_batches(sampling, number, ranks, per_rank):
    """The slices of all ranks are the batch of a single rank, and all have equally many steps."""
    epoch, size = epoch_of(sampling, number), ranks * per_rank
    assume(len(epoch))
    shown = []
    for step in range(epoch.steps(size)):
        batch = epoch.batch(step, size, 0, 1)
        parts = [epoch.batch(step, size, rank, ranks) for rank in range(ranks)]
        assert {len(part.samples.records) for part in parts} == {per_rank}
        for read in (lambda b: b.samples.records, lambda b: b.samples.views, lambda b: b.weights):
            np.testing.assert_array_equal(np.concatenate([*map(read, parts)]), read(batch))
        assert {part.total for part in parts} == {int(batch.weights.sum())}
        shown += batch.samples.records[batch.weights > 0].tolist()
    np.testing.assert_array_equal(shown, whole(sampling, number).records)


@given(samplings(), st.integers(0, 9), st.data())
def test_order_is_random_access(sampling, number, data):
    epoch = epoch_of(sampling, number)
    assume(len(epoch))
    first = data.draw(st.integers(0, len(epoch) - 1))
    last = data.draw(st.integers(first + 1, len(epoch)))
    part, complete = epoch_of(sampling, number).samples(first, last), whole(sampling, number)
    np.testing.assert_array_equal(part.records, complete.records[first:last])
    np.testing.assert_array_equal(part.views, complete.views[first:last])


def plain(*counts, window=1000, **options):
    return Sampling(np.array([[n] for n in counts]), options.pop("seed", 1), window, **options)


def test_window_reads_few_shards():
    sampling = plain(*[50] * 20, window=4)
    records = whole(sampling, 0).records
    for window in records.reshape(5, 200):
        assert len(set(window // 50)) == 4
    # Shuffled within the window: neighbours in a file are about a third of the window apart.
    positions = np.argsort(records)
    distance = np.abs(np.diff(positions.reshape(20, 50), axis=1)).mean()
    assert 55 < distance < 78


@given(st.integers(1, 500), st.integers(1, 60))
def test_windows_are_few_and_even(shards, window):
    sizes = np.diff(window_bounds(shards, window))
    assert sizes.sum() == shards and len(sizes) == math.ceil(shards / window)
    assert sizes.max() <= window and sizes.max() - sizes.min() <= 1


def test_last_window_is_not_a_remainder():
    """41 shards in windows of at most ten: five windows of eight or nine, none of one."""
    records = whole(plain(*[10] * 41, window=10), 0).records
    together = [set(part // 10) for part in np.split(records, [80, 160, 240, 320])]
    assert [len(shards) for shards in together] == [8, 8, 8, 8, 9]


def test_views_of_a_record_are_in_different_passes():
    sampling = plain(*[50] * 10, window=5, views=(0, 4))
    records = whole(sampling, 0).records
    assert sorted(records[:500]) == sorted(records[500:]) == list(range(500))


def test_indivisible_batch_size_is_refused():
    with pytest.raises(ValueError, match=r"batch_size 5 .* 2 ranks"):
        epoch_of(plain(5), 0).batch(0, 5, 0, 2)


def test_epochs_and_seeds_differ():
    orders = {
        tuple(whole(plain(60, 40, seed=seed), number).records)
        for seed in range(5)
        for number in range(5)
    }
    assert len(orders) == 25


def test_order_is_frozen():
    """Another order would change the result of the same settings."""
    shown = whole(plain(5, 3), 0)
    assert shown.records.tolist() == [6, 4, 3, 2, 5, 7, 1, 0]
    assert shown.views.tolist() == [4, 1, 5, 5, 2, 0, 5, 1]


def test_every_position_is_equally_likely():
    """Chi-square test of the position of sample 0; a biased shuffle fails clearly."""
    sampling = plain(6, 4)
    positions = [int(np.argmin(whole(sampling, number).records)) for number in range(5000)]
    assert (
        (np.bincount(positions, minlength=10) - 500) ** 2 / 500
    ).sum() < 27.9  # 99.9 %, 9 degrees


def test_views_are_the_eight_symmetries():
    image = np.arange(27).reshape(3, 3, 3)
    shown = [apply_view(image, view) for view in range(len(VIEWS))]
    np.testing.assert_array_equal(shown[0], image)
    assert len({view.tobytes() for view in shown}) == len(VIEWS)
    for view in shown:
        assert sorted(view[:, :, 0].ravel()) == sorted(image[:, :, 0].ravel())


def test_views_are_uniform_and_new_in_every_epoch():
    sampling = plain(8000)
    first, second = (whole(sampling, number) for number in (0, 1))
    counts = np.bincount(first.views, minlength=len(VIEWS))
    assert counts.min() > 850 and counts.max() < 1150
    by_record = [shown.views[np.argsort(shown.records)] for shown in (first, second)]
    assert (by_record[0] == by_record[1]).mean() < 0.2
