"""The order of samples is a pure function with the properties that training relies on."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gigatile.training.sample_order import VIEWS, Epoch, Sampling, apply_view, window_bounds

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
    """Records of the classes in turn, as far as they go."""

    def of_shard(shard):
        first, second = sampling.counts[shard]
        classes = np.repeat([0, 1], [first, second])
        return np.random.default_rng(shard).permutation(classes)

    return of_shard


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
def test_an_epoch_shows_every_record_once_under_each_view(sampling, number):
    shown = whole(sampling, number)
    records = np.arange(sampling.counts.sum())
    if sampling.views:
        pairs = sorted(zip(shown.records.tolist(), shown.views.tolist(), strict=True))
        assert pairs == sorted((record, view) for record in records for view in sampling.views)
    else:
        np.testing.assert_array_equal(np.sort(shown.records), records)


@given(samplings(boosted=True), st.integers(0, 50))
def test_a_boosted_class_is_shown_just_as_often_as_asked(sampling, number):
    """In one epoch within one time; in as many as its fraction has parts, to the record."""
    turns, of = max(1, len(sampling.views)), classes(sampling)
    weights = np.array([float(weight) for weight in sampling.boost])[of]
    cycle = math.lcm(*(weight.denominator for weight in sampling.boost))
    total = np.zeros(len(of))
    for epoch in range(number, number + cycle):
        times = np.bincount(whole(sampling, epoch).records, minlength=len(of)) / turns
        assert ((times == np.floor(weights)) | (times == np.ceil(weights))).all()
        total += times
    np.testing.assert_array_equal(total, [int(sampling.boost[one] * cycle) for one in of])


@given(samplings(), st.integers(0, 9), st.sampled_from([1, 2, 4]), st.integers(1, 8))
def test_ranks_share_the_same_batches(sampling, number, ranks, per_rank):
    """Put together, the ranks' parts are what a single rank would have had; none has more steps."""
    epoch, size = epoch_of(sampling, number), ranks * per_rank
    assume(len(epoch))
    shown = []
    for step in range(epoch.steps(size)):
        one = epoch.batch(step, size, 0, 1)
        parts = [epoch.batch(step, size, rank, ranks) for rank in range(ranks)]
        assert {len(part.samples.records) for part in parts} == {per_rank}
        for read in (lambda b: b.samples.records, lambda b: b.samples.views, lambda b: b.weights):
            np.testing.assert_array_equal(np.concatenate([*map(read, parts)]), read(one))
        assert {part.total for part in parts} == {int(one.weights.sum())}
        shown += one.samples.records[one.weights > 0].tolist()
    np.testing.assert_array_equal(shown, whole(sampling, number).records)


@given(samplings(), st.integers(0, 9), st.data())
def test_any_place_is_found_without_those_before_it(sampling, number, data):
    epoch = epoch_of(sampling, number)
    assume(len(epoch))
    first = data.draw(st.integers(0, len(epoch) - 1))
    last = data.draw(st.integers(first + 1, len(epoch)))
    part, all_of_it = epoch_of(sampling, number).samples(first, last), whole(sampling, number)
    np.testing.assert_array_equal(part.records, all_of_it.records[first:last])
    np.testing.assert_array_equal(part.views, all_of_it.views[first:last])


def plain(*counts, window=1000, **options):
    return Sampling(np.array([[n] for n in counts]), options.pop("seed", 1), window, **options)


def test_what_is_read_together_lies_in_few_shards():
    sampling = plain(*[50] * 20, window=4)
    records = whole(sampling, 0).records
    for window in records.reshape(5, 200):
        assert len(set(window // 50)) == 4
    # And within them at random: neighbours in a file are about a third of the window apart.
    places = np.argsort(records)
    apart = np.abs(np.diff(places.reshape(20, 50), axis=1)).mean()
    assert 55 < apart < 78


@given(st.integers(1, 500), st.integers(1, 60))
def test_windows_are_as_few_as_can_be_and_even(shards, window):
    sizes = np.diff(window_bounds(shards, window))
    assert sizes.sum() == shards and len(sizes) == math.ceil(shards / window)
    assert sizes.max() <= window and sizes.max() - sizes.min() <= 1


def test_no_window_holds_what_is_left_over_alone():
    """41 shards in windows of ten or less: five of them, of eight or nine, and none of one."""
    records = whole(plain(*[10] * 41, window=10), 0).records
    together = [set(part // 10) for part in np.split(records, [80, 160, 240, 320])]
    assert [len(shards) for shards in together] == [8, 8, 8, 8, 9]


def test_views_of_a_record_come_far_apart():
    sampling = plain(*[50] * 10, window=5, views=(0, 4))
    records = whole(sampling, 0).records
    assert sorted(records[:500]) == sorted(records[500:]) == list(range(500))


def test_a_batch_size_that_ranks_cannot_share_is_refused():
    with pytest.raises(ValueError, match=r"batch_size 5 .* 2 ranks"):
        epoch_of(plain(5), 0).batch(0, 5, 0, 2)


def test_epochs_and_seeds_differ():
    orders = {
        tuple(whole(plain(60, 40, seed=seed), number).records)
        for seed in range(5)
        for number in range(5)
    }
    assert len(orders) == 25


def test_the_order_is_the_same_on_every_machine():
    """Frozen: another order would be another result of the same settings."""
    shown = whole(plain(5, 3), 0)
    assert shown.records.tolist() == [6, 4, 3, 2, 5, 7, 1, 0]
    assert shown.views.tolist() == [4, 1, 5, 5, 2, 0, 5, 1]


def test_every_position_is_equally_likely():
    """Chi-square over where sample 0 lands; a biased shuffle fails by far."""
    sampling = plain(6, 4)
    places = [int(np.argmin(whole(sampling, number).records)) for number in range(5000)]
    assert ((np.bincount(places, minlength=10) - 500) ** 2 / 500).sum() < 27.9  # 99.9 %, 9 degrees


def test_views_are_the_eight_symmetries():
    image = np.arange(27).reshape(3, 3, 3)
    shown = [apply_view(image, view) for view in range(len(VIEWS))]
    np.testing.assert_array_equal(shown[0], image)
    assert len({one.tobytes() for one in shown}) == len(VIEWS)
    for one in shown:
        assert sorted(one[:, :, 0].ravel()) == sorted(image[:, :, 0].ravel())


def test_views_are_spread_and_new_in_every_epoch():
    sampling = plain(8000)
    first, second = (whole(sampling, number) for number in (0, 1))
    counts = np.bincount(first.views, minlength=len(VIEWS))
    assert counts.min() > 850 and counts.max() < 1150
    of_record = [shown.views[np.argsort(shown.records)] for shown in (first, second)]
    assert (of_record[0] == of_record[1]).mean() < 0.2
