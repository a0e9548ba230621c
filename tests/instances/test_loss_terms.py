"""The terms of the loss of Mask R-CNN, compared with loops."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from plain_detection import cross_entropy, sigmoid_cross_entropy

from gigatile.instances.losses import box_loss, class_loss, mask_loss, objectness_loss

SEEDS = st.integers(0, 2**32 - 1)


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def case(seed: int):
    """Return random numbers, the number of images and of samples, and which of them count."""
    random = np.random.default_rng(seed)
    images, count = random.integers(1, 4), random.integers(0, 6)
    counts = random.random((images, count)) < random.choice([0, 0.5, 1])
    return random, images, count, counts


@given(SEEDS)
def test_objectness(seed):
    random, images, count, counts = case(seed)
    logits = random.normal(0, 5, (images, count))
    labels = random.integers(0, 2, (images, count))
    ours = objectness_loss(tf.constant(logits), tf.constant(labels), tf.constant(counts)).numpy()
    expected = [
        mean([sigmoid_cross_entropy(x, y) for x, y, c in zip(*rows, strict=True) if c])
        for rows in zip(logits, labels, counts, strict=True)
    ]
    np.testing.assert_allclose(ours, expected, rtol=1e-9)


@given(SEEDS)
def test_classes(seed):
    random, images, count, counts = case(seed)
    logits = random.normal(0, 5, (images, count, 4))
    labels = random.integers(0, 4, (images, count)).astype(np.int32)
    ours = class_loss(tf.constant(logits), tf.constant(labels), tf.constant(counts)).numpy()
    expected = [
        mean([cross_entropy(x, y) for x, y, c in zip(*rows, strict=True) if c])
        for rows in zip(logits, labels, counts, strict=True)
    ]
    np.testing.assert_allclose(ours, expected, rtol=1e-9)


@given(SEEDS)
def test_boxes(seed):
    """L1, the sum over the matched boxes divided by the number of samples, as in detectron2."""
    random, images, count, matched = case(seed)
    deltas, targets = random.normal(size=(2, images, count, 4))
    samples = matched.sum(axis=1) + random.integers(0, 3, images)
    ours = box_loss(*map(tf.constant, (deltas, targets, matched, samples))).numpy()
    for image in range(images):
        total = 0.0
        for box in range(count):
            for value in range(4):
                if matched[image, box]:
                    total += abs(deltas[image, box, value] - targets[image, box, value])
        np.testing.assert_allclose(ours[image], total / max(samples[image], 1), rtol=1e-9)


@given(SEEDS)
def test_masks(seed):
    random, images, count, matched = case(seed)
    logits = random.normal(0, 5, (images, count, 2, 2))
    targets = random.integers(0, 2, (images, count, 2, 2)).astype(np.float32)
    ours = mask_loss(*map(tf.constant, (logits, targets, matched))).numpy()
    for image in range(images):
        values = [
            sigmoid_cross_entropy(logits[image, box].flat[bin_], targets[image, box].flat[bin_])
            for box in range(count)
            if matched[image, box]
            for bin_ in range(4)
        ]
        np.testing.assert_allclose(ours[image], mean(values), rtol=1e-9)


BAD = [np.nan, np.inf, -np.inf]


@pytest.mark.parametrize("bad", BAD)
def test_padding_changes_neither_loss_nor_gradient(bad):
    """Not even if a value of padding is not a number."""
    counts = tf.constant([[True, False]])
    labels = tf.constant([[1, 1]])
    some = tf.constant([[1.0, bad]])
    vectors = tf.tile(some[..., None], (1, 1, 4))
    zeros = tf.zeros((1, 2, 4))
    with tf.GradientTape() as tape:
        tape.watch([some, vectors])
        loss = objectness_loss(some, labels, counts)
        loss += class_loss(vectors, labels, counts)
        loss += box_loss(vectors, zeros, counts, tf.constant([1]))
        square = tf.reshape(vectors, (1, 2, 2, 2))
        loss += mask_loss(square, tf.zeros((1, 2, 2, 2)), counts)
    assert np.isfinite(loss.numpy()).all()
    gradients = tape.gradient(loss, [some, vectors])
    assert np.isfinite(gradients[0][0, 0]) and np.isfinite(gradients[1][0, 0]).all()


def test_large_logits_are_finite():
    logits = tf.constant([[-500.0, 500]])
    counts = tf.constant([[True, True]])
    np.testing.assert_allclose(objectness_loss(logits, tf.constant([[1, 0]]), counts), [500])
    pairs = tf.constant([[[-500.0, 500], [500, -500]]])
    np.testing.assert_allclose(class_loss(pairs, tf.constant([[0, 1]]), counts), [1000])
