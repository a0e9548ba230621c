"""Overlap and coding of boxes, compared with loops over numbers."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from plain_detection import area, clip, decode, encode, overlaps

from gigatile.instances.boxes import (
    MAX_LOG_FACTOR,
    areas,
    clip_boxes,
    decode_boxes,
    encode_boxes,
    pairwise_iou,
)

WEIGHTS = [(1.0, 1.0, 1.0, 1.0), (10.0, 10.0, 5.0, 5.0)]
# Coordinates on a grid, so that boxes touch, are equal, empty or turned over.
COARSE = st.sampled_from([-3.0, 0.0, 1.0, 1.5, 4.0, 8.0])
NUMBERS = st.one_of(COARSE, st.floats(-100, 100, allow_subnormal=False))


def any_boxes(numbers=NUMBERS, count=None):
    counts = st.integers(0, 6) if count is None else st.just(count)
    return counts.flatmap(lambda n: arrays.arrays(np.float64, (n, 4), elements=numbers))


@st.composite
def positive_boxes(draw, count: int):
    corner = draw(arrays.arrays(np.float64, (count, 2), elements=st.floats(-50, 50)))
    sides = draw(arrays.arrays(np.float64, (count, 2), elements=st.floats(0.01, 90)))
    return np.concatenate([corner, corner + sides], axis=1)


@given(any_boxes(), any_boxes())
@example(np.array([[4.0, 4, 0, 0]]), np.array([[0.0, 0, 4, 4], [1, 1, 2, 2]]))
@example(np.array([[4.0, 0, 0, 4]]), np.array([[4.0, 0, 0, 4]]))
def test_overlap(first, second):
    ours = pairwise_iou(tf.constant(first), tf.constant(second)).numpy()
    assert ours.shape == (len(first), len(second))
    np.testing.assert_allclose(ours, overlaps(first, second), rtol=1e-9, atol=1e-12)
    other = pairwise_iou(tf.constant(second), tf.constant(first)).numpy()
    np.testing.assert_allclose(ours, other.T, rtol=1e-12)


def test_overlap_by_hand():
    boxes = tf.constant([[0.0, 0, 2, 4], [1, 2, 3, 6], [2, 0, 4, 4], [0, 0, 0, 4]])
    ours = pairwise_iou(boxes, boxes).numpy()
    expected = np.eye(4)
    expected[3, 3] = 0  # an empty box
    expected[0, 1] = expected[1, 0] = 2 / 14
    expected[1, 2] = expected[2, 1] = 2 / 14
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


@given(any_boxes())
def test_areas(boxes):
    np.testing.assert_allclose(areas(tf.constant(boxes)), [area(box) for box in boxes], rtol=1e-12)
    np.testing.assert_array_equal(areas(tf.constant(boxes[:, None])), areas(boxes)[:, None])


@pytest.mark.parametrize("weights", WEIGHTS)
@given(st.integers(0, 5).flatmap(lambda n: st.tuples(positive_boxes(n), positive_boxes(n))))
def test_coding(weights, pair):
    boxes, anchors = pair
    deltas = encode_boxes(tf.constant(boxes), tf.constant(anchors), weights).numpy()
    expected = [encode(*values, weights) for values in zip(boxes, anchors, strict=True)]
    np.testing.assert_allclose(deltas, np.reshape(expected, (-1, 4)), rtol=1e-6, atol=1e-9)
    # The largest factor of a side is 62.5; decoding returns the others.
    within = boxes[:, 2:] - boxes[:, :2] <= 62.5 * (anchors[:, 2:] - anchors[:, :2])
    decoded = decode_boxes(tf.constant(deltas), tf.constant(anchors), weights).numpy()
    keep = within.all(axis=1)
    np.testing.assert_allclose(decoded[keep], boxes[keep], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("weights", WEIGHTS)
@given(
    st.integers(0, 5).flatmap(
        lambda n: st.tuples(any_boxes(st.floats(-30, 30), n), positive_boxes(n))
    )
)
@example((np.array([[0.0, 0, 4000, -4000]]), np.array([[0.0, 0, 2, 2]])))
def test_decoding(weights, pair):
    deltas, anchors = pair
    ours = decode_boxes(tf.constant(deltas), tf.constant(anchors), weights).numpy()
    expected = [decode(*values, weights) for values in zip(deltas, anchors, strict=True)]
    np.testing.assert_allclose(ours, np.reshape(expected, (-1, 4)), rtol=1e-9, atol=1e-9)
    assert np.isfinite(ours).all()


def test_decoding_keeps_the_precision_of_the_anchors():
    anchors = tf.constant([[0.0, 0, 1000.3, 1000.7]])
    decoded = decode_boxes(tf.constant([[0.1, 0.1, 0.1, 0.1]], tf.float16), anchors, WEIGHTS[0])
    assert decoded.dtype == tf.float32
    expected = decode([float(np.float16(0.1))] * 4, anchors.numpy()[0].tolist(), WEIGHTS[0])
    np.testing.assert_allclose(decoded[0], expected, rtol=1e-5)
    assert math.isclose(math.exp(MAX_LOG_FACTOR), 62.5)


@given(
    st.integers(0, 4).flatmap(
        lambda n: st.tuples(
            arrays.arrays(np.float64, (n, 3, 4), elements=NUMBERS),
            arrays.arrays(np.int32, (n, 2), elements=st.integers(1, 50)),
        )
    )
)
def test_clipping_to_each_image(pair):
    boxes, sizes = pair
    ours = clip_boxes(tf.constant(boxes), tf.constant(sizes)).numpy()
    expected = [
        [clip(box, *size) for box in rows] for rows, size in zip(boxes, sizes.tolist(), strict=True)
    ]
    np.testing.assert_array_equal(ours, np.reshape(expected, boxes.shape))
