"""Non-maximum suppression and proposals, compared with loops."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from plain_detection import anchor_boxes, propose, suppress

from gigatile.instances.proposals import ABSENT, ProposalLimits, keep_best
from gigatile.instances.proposals import propose as propose_batch

THRESHOLDS = (0.0, 0.25, 0.5, 0.7)


@st.composite
def problems(draw):
    """Boxes on a coarse grid: many are equal, touch, are empty or overlap by exactly a half."""
    count = draw(st.integers(1, 14))
    corner = draw(arrays.arrays(np.float32, (count, 2), elements=st.sampled_from([0, 1, 2, 4, 6])))
    sides = draw(arrays.arrays(np.float32, (count, 2), elements=st.sampled_from([0, 1, 2, 4])))
    scores = draw(arrays.arrays(np.float32, count, elements=st.sampled_from([-3, 0, 0.5, 1, 9])))
    absent = draw(arrays.arrays(bool, count))
    groups = draw(arrays.arrays(np.int32, count, elements=st.integers(0, 3)))
    scores = np.where(absent, np.float32(ABSENT), scores)
    return np.concatenate([corner, corner + sides], axis=1), scores, groups


def kept_of(boxes, scores, groups, count, iou) -> list[int]:
    kept, exists = keep_best(
        tf.constant(boxes), tf.constant(scores), tf.constant(groups), count, iou
    )
    assert kept.shape == exists.shape == (count,)
    number = int(exists.numpy().sum())
    assert exists.numpy()[:number].all() and (kept.numpy()[number:] == 0).all()
    return kept.numpy()[:number].tolist()


@settings(max_examples=300)
@given(problems(), st.integers(1, 20), st.sampled_from(THRESHOLDS))
def test_kept_boxes(problem, count, iou):
    boxes, scores, groups = problem
    (present,) = np.nonzero(scores > ABSENT / 2)
    some = (values[present].tolist() for values in (boxes, scores, groups))
    expected = present[suppress(*some, count, iou)].tolist()
    assert kept_of(boxes, scores, groups, count, iou) == expected


def test_overlap_of_exactly_the_threshold_is_kept():
    boxes = np.array([[0, 0, 4, 4], [0, 0, 4, 2], [0, 0, 4, 3]], np.float32)
    scores, groups = np.array([3, 2, 1], np.float32), np.zeros(3, np.int32)
    assert kept_of(boxes, scores, groups, 5, 0.5) == [0, 1]
    assert kept_of(boxes, scores, np.array([0, 1, 2], np.int32), 5, 0.5) == [0, 1, 2]


def test_all_absent():
    boxes, scores = np.ones((3, 4), np.float32), np.full(3, ABSENT, np.float32)
    assert kept_of(boxes, scores, np.zeros(3, np.int32), 2, 0.5) == []


@pytest.mark.parametrize("seed", range(3))
def test_many_classes_on_a_large_image(seed):
    """Moving the 80 classes of COCO apart costs less than 0.01 of overlap in single precision."""
    random = np.random.default_rng(seed)
    corner = random.uniform(0, 1200, (3000, 2)) // 30 * 30 + random.uniform(0, 4, (3000, 2))
    sides = random.uniform(8, 14, (3000, 2))
    boxes = np.concatenate([corner, corner + sides], axis=1).astype(np.float32)
    scores = random.random(3000).astype(np.float32)
    groups = random.integers(0, 80, 3000).astype(np.int32) // 20 * 20 + 19
    ours = kept_of(boxes, scores, groups, 3000, 0.5)
    # Each box removed overlaps with a better one, and no two of those kept overlap.
    for group in np.unique(groups):
        kept = [index for index in ours if groups[index] == group]
        strict = _overlaps(boxes[kept])
        np.fill_diagonal(strict, 0)
        assert strict.max() < 0.51
        (members,) = np.nonzero(groups == group)
        removed = np.setdiff1d(members, kept)
        iou = _overlaps(boxes[removed], boxes[kept])
        better = scores[kept][None] > scores[removed][:, None]
        assert len(removed) > 50 and ((iou > 0.49) & better).any(axis=1).all()


def _overlaps(first, second=None) -> np.ndarray:
    first = first.astype(np.float64)
    second = first if second is None else second.astype(np.float64)
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=-1)
    of_first, of_second = ((b[:, 2:] - b[:, :2]).prod(axis=1) for b in (first, second))
    return shared / (of_first[:, None] + of_second[None] - shared)


@st.composite
def networks(draw):
    """Return random outputs of a region proposal network for two images."""
    seed = draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    sizes = draw(arrays.arrays(np.int32, (2, 2), elements=st.integers(1, 32)))
    anchors = [
        np.array(anchor_boxes(4, 4, 8, 8, (0.5, 1, 2))),
        np.array(anchor_boxes(2, 2, 16, 16, (0.5, 1, 2))),
        np.array(anchor_boxes(1, 1, 32, 32, (0.5, 1, 2))),
    ]
    # Logits have ties; some deltas are large, so that boxes are outside, and clipped to nothing.
    objectness = [random.integers(-4, 5, (2, len(a))).astype(np.float32) / 2 for a in anchors]
    deltas = [
        random.normal(size=(2, len(a), 4)) * random.choice([0.2, 3], (2, len(a), 1))
        for a in anchors
    ]
    return objectness, deltas, anchors, sizes


@settings(max_examples=40)
@given(networks(), st.sampled_from([1, 5, 1000]), st.sampled_from([1, 7, 80]))
def test_proposals(network, before, after):
    objectness, deltas, anchors, sizes = network
    limits = ProposalLimits(before, after)
    assert limits.iou == 0.7
    proposals, exists = propose_batch(
        *([tf.constant(part) for part in parts] for parts in (objectness, deltas, anchors)),
        tf.constant(sizes),
        limits,
    )
    assert proposals.shape == (2, after, 4) and proposals.dtype == tf.float64
    for image in range(2):
        expected = propose(
            [level[image] for level in objectness],
            [level[image] for level in deltas],
            anchors,
            sizes[image].tolist(),
            before,
            after,
            0.7,
        )
        boxes = proposals[image].numpy()
        assert exists[image].numpy().tolist() == [True] * len(expected) + [False] * (
            after - len(expected)
        )
        np.testing.assert_allclose(boxes[: len(expected)], np.reshape(expected, (-1, 4)), rtol=1e-9)
        assert (boxes[len(expected) :] == 0).all()


def test_levels_do_not_suppress_each_other():
    """Equal boxes of two levels are both proposals; those of the same level are not."""
    anchors = [tf.constant([[0.0, 0, 8, 8]] * 2), tf.constant([[0.0, 0, 8, 8]])]
    objectness = [tf.constant([[3.0, 2]]), tf.constant([[1.0]])]
    deltas = [tf.zeros((1, 2, 4)), tf.zeros((1, 1, 4))]
    sizes = tf.constant([[8, 8]])
    _, exists = propose_batch(objectness, deltas, anchors, sizes, ProposalLimits(9, 4))
    assert exists.numpy().tolist() == [[True, True, False, False]]


@example(0)
@given(st.integers(0, 5))
def test_image_does_not_depend_on_the_others(seed):
    random = np.random.default_rng(seed)
    anchors = [tf.constant(anchor_boxes(4, 4, 8, 8, (0.5, 1, 2)), tf.float32)]
    objectness = [tf.constant(random.normal(size=(3, 48)), tf.float32)]
    deltas = [tf.constant(random.normal(size=(3, 48, 4)), tf.float32)]
    sizes, limits = tf.constant([[32, 32], [20, 9], [1, 1]]), ProposalLimits(40, 20)
    together = propose_batch(objectness, deltas, anchors, sizes, limits)
    for image in range(3):
        part = slice(image, image + 1)
        alone = propose_batch(
            [objectness[0][part]], [deltas[0][part]], anchors, sizes[part], limits
        )
        for ours, expected in zip(alone, together, strict=True):
            np.testing.assert_array_equal(ours[0], expected[image])


def test_proposals_have_no_gradient():
    anchors = [tf.constant(anchor_boxes(2, 2, 8, 8, (1,)), tf.float32)]
    logits, moves = tf.zeros((1, 4)), tf.zeros((1, 4, 4))
    with tf.GradientTape() as tape:
        tape.watch([logits, moves])
        sizes = tf.constant([[16, 16]])
        boxes, _ = propose_batch([logits], [moves], anchors, sizes, ProposalLimits(4, 4))
        total = tf.reduce_sum(boxes)
    assert tape.gradient(total, [logits, moves]) == [None, None]
