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
    """Return the indices kept of boxes (m, 4) in groups (m,), for the second of two images."""
    absent = np.float32(ABSENT)
    by_group = [np.where(groups == group, scores, absent) for group in range(groups.max() + 1)]
    by_image = np.stack([np.full_like(by_group, absent), by_group])
    every_box = np.broadcast_to(boxes, (*by_image.shape, 4))
    kept, exists = keep_best(tf.constant(every_box), tf.constant(by_image), count, iou)
    assert kept.shape == exists.shape == (2, count) and not exists[0].numpy().any()
    number = int(exists[1].numpy().sum())
    assert exists[1].numpy()[:number].all() and (kept[1].numpy()[number:] == 0).all()
    kept = kept[1].numpy()[:number]
    assert (groups[kept % len(boxes)] == kept // len(boxes)).all()
    return (kept % len(boxes)).tolist()


@settings(max_examples=300)
@given(problems(), st.integers(1, 20), st.sampled_from(THRESHOLDS))
def test_kept_boxes(problem, count, iou):
    boxes, scores, groups = problem
    (present,) = np.nonzero(scores > ABSENT / 2)
    # Of equal scores, those of the first group come first.
    present = present[np.argsort(groups[present], kind="stable")]
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


@pytest.mark.parametrize("position", [0, 999])
def test_class_does_not_change_what_is_kept(position):
    """Not even of 1,000 classes on the largest canvas, for boxes of a few pixels."""
    random = np.random.default_rng(position)
    corner = 8000 + random.uniform(0, 40, (60, 2))
    boxes = np.concatenate([corner, corner + random.uniform(4, 9, (60, 2))], axis=1)
    boxes, scores = boxes.astype(np.float32), random.random(60).astype(np.float32)
    groups = np.full(60, position, np.int32)
    expected = suppress(boxes.tolist(), scores.tolist(), groups.tolist(), 60, 0.3)
    assert 10 < len(expected) < 50
    assert kept_of(boxes, scores, groups, 60, 0.3) == expected


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
