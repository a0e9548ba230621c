"""Matching and sampling of boxes, compared with loops."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from plain_detection import match, sample

from gigatile.instances.matching import BACKGROUND, IGNORED, match_boxes, sample_matches

# Few different values, so that ties and values at the limits are frequent.
OVERLAPS = st.sampled_from([0, 0.1, 0.25, 0.3, 0.5, 0.7, 0.75, 1])


@st.composite
def problems(draw):
    shape = draw(st.integers(0, 8)), draw(st.integers(0, 5))
    iou = draw(arrays.arrays(np.float64, shape, elements=OVERLAPS))
    return iou, draw(arrays.arrays(bool, shape[1:]))


@given(problems(), st.sampled_from([(0.3, 0.7), (0.5, 0.5)]), st.booleans())
@example((np.array([[0.5, 0.5], [0.25, 0.5]]), np.array([True, True])), (0.3, 0.7), True)
@example((np.zeros((3, 2)), np.array([True, True])), (0.3, 0.7), True)
def test_matches(problem, limits, keep_best):
    iou, exists = problem
    ours = match_boxes(tf.constant(iou), tf.constant(exists), *limits, keep_best)
    assert ours.dtype == tf.int32
    expected = match(iou.tolist(), exists.tolist(), *limits, keep_best)
    assert ours.numpy().tolist() == expected


def test_matches_by_hand():
    iou = tf.constant([[0.0, 0.8], [0.3, 0.2], [0.1, 0.69], [0.0, 0.29], [0.7, 0.7]])
    exists = tf.constant([True, True])
    assert match_boxes(iou, exists, 0.3, 0.7, False).numpy().tolist() == [1, -2, -2, -1, 0]
    # The instance with the largest overlap of a box stays, also if another one keeps the box.
    iou = tf.constant([[0.2, 0.6], [0.2, 0.1]])
    assert match_boxes(iou, exists, 0.3, 0.7, True).numpy().tolist() == [1, 0]
    assert (BACKGROUND, IGNORED) == (-1, -2)


def test_padding_and_overlap_0_are_not_kept():
    iou = tf.constant([[0.0, 0.9], [0.0, 0.0]])
    for keep_best in (False, True):
        matches = match_boxes(iou, tf.constant([True, False]), 0.3, 0.7, keep_best)
        assert matches.numpy().tolist() == [-1, -1]


def parts(matches, seed=(3, 4), count=8, share=0.25):
    """Return the sampled matched boxes and background boxes that count."""
    matched, background, exists = sample_matches(tf.constant(matches), seed, count, share)
    counts = exists.numpy()
    assert len(counts) == len(matched) + len(background)
    assert len(background) == min(count, len(matches))
    assert len(matched) == min(int(count * share), len(matches))
    first, rest = np.split(counts, [len(matched)])
    return matched.numpy()[first].tolist(), background.numpy()[rest].tolist()


@given(
    arrays.arrays(np.int32, st.integers(0, 40), elements=st.sampled_from([-2, -1, 0, 1, 5])),
    st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * 2),
    st.integers(4, 30),
    st.sampled_from([0.25, 0.5]),
)
@example(np.full(9, -2, np.int32), (0, 0), 4, 0.5)
@example(np.full(9, -1, np.int32), (0, 0), 8, 0.5)
@example(np.full(9, 3, np.int32), (0, 0), 8, 0.25)
def test_samples(matches, seed, count, share):
    matched, background = parts(matches, seed, count, share)
    random = tf.random.stateless_uniform((len(matches),), seed, alg="philox").numpy()
    assert (matched, background) == sample(matches.tolist(), random.tolist(), count, share)
    # As many as possible, and none twice.
    assert len(matched) == min(int(count * share), (matches >= 0).sum())
    assert len(background) == min(count - len(matched), (matches == -1).sum())
    assert len({*matched, *background}) == len(matched) + len(background)


def test_same_seed_gives_the_same_samples():
    matches = np.random.default_rng(1).integers(-2, 3, 300).astype(np.int32)
    assert parts(matches, (1, 2), 64) == parts(matches, (1, 2), 64)
    assert parts(matches, (1, 2), 64) != parts(matches, (1, 3), 64)
    assert parts(matches, (1, 2), 64) != parts(matches, (2, 2), 64)


@pytest.mark.parametrize("padding", [1, 2, 3, 7, 64, 5000])
def test_padding_does_not_change_the_samples(padding):
    """Other images of a batch may have more instances, which are padding here."""
    matches = np.random.default_rng(1).integers(-2, 3, 301).astype(np.int32)
    more = np.append(matches, np.full(padding, -2, np.int32))
    for seed in ((1, 2), (-5, 7)):
        assert parts(more, seed, 64) == parts(matches, seed, 64)


def test_each_box_is_sampled_equally_often():
    matches = np.array([0] * 6 + [-1] * 20 + [-2] * 5, np.int32)
    counts, runs = np.zeros(31), 600
    run = tf.function(lambda seed: sample_matches(matches, seed, 8, 0.25))
    for number in range(runs):
        matched, background, exists = (part.numpy() for part in run(tf.constant([7, number])))
        counts[np.concatenate([matched, background])[exists]] += 1
    assert (counts[26:] == 0).all()
    for some, expected in ((counts[:6], runs * 2 / 6), (counts[6:26], runs * 6 / 20)):
        deviation = np.sqrt(expected * (1 - expected / runs))
        assert abs(some - expected).max() < 4 * deviation and some.std() > deviation / 3
