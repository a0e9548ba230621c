"""Boxes as tensors: overlap, and their coding relative to other boxes."""

import math
from collections.abc import Sequence

import tensorflow as tf

# Largest logarithm of the factor of a side: larger ones would overflow. As in detectron2.
MAX_LOG_FACTOR = math.log(1000 / 16)


def areas(boxes: tf.Tensor) -> tf.Tensor:
    """Return the areas of boxes (…, 4): (…,), 0 for empty boxes."""
    y1, x1, y2, x2 = tf.unstack(boxes, axis=-1)
    return tf.maximum(y2 - y1, 0) * tf.maximum(x2 - x1, 0)


def pairwise_iou(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Return the intersection over union of all pairs of boxes.

    Args:
        first: (n, 4).
        second: (m, 4).

    Returns:
        (n, m); 0 if both boxes are empty.
    """
    low = tf.maximum(first[:, None, :2], second[None, :, :2])
    high = tf.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = tf.reduce_prod(tf.maximum(high - low, 0), axis=-1)
    union = areas(first)[:, None] + areas(second)[None] - shared
    return tf.math.divide_no_nan(shared, union)


def encode_boxes(boxes: tf.Tensor, anchors: tf.Tensor, weights: Sequence[float]) -> tf.Tensor:
    """Return boxes relative to anchors: (dy, dx, log of the factors of height and width).

    Girshick et al. 2014, https://arxiv.org/abs/1311.2524, appendix C. Both must have positive
    sides.

    Args:
        boxes, anchors: (…, 4).
        weights: factors of the four values.
    """
    size, anchor_size = boxes[..., 2:] - boxes[..., :2], anchors[..., 2:] - anchors[..., :2]
    moved = (boxes[..., :2] + size / 2 - anchors[..., :2] - anchor_size / 2) / anchor_size
    deltas = tf.concat([moved, tf.math.log(size / anchor_size)], axis=-1)
    return deltas * tf.constant(weights, deltas.dtype)


def decode_boxes(deltas: tf.Tensor, anchors: tf.Tensor, weights: Sequence[float]) -> tf.Tensor:
    """Return the boxes that `encode_boxes` encoded, in the precision of the anchors."""
    deltas = tf.cast(deltas, anchors.dtype) / tf.constant(weights, anchors.dtype)
    size = anchors[..., 2:] - anchors[..., :2]
    centre = anchors[..., :2] + size / 2 + deltas[..., :2] * size
    half = tf.exp(tf.minimum(deltas[..., 2:], MAX_LOG_FACTOR)) * size / 2
    return tf.concat([centre - half, centre + half], axis=-1)


def clip_boxes(boxes: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """Return boxes (n, k, 4) clipped to images of these heights and widths, (n, 2)."""
    sizes = tf.cast(sizes, boxes.dtype)
    limits = tf.concat([sizes, sizes], axis=-1)[:, None]
    return tf.clip_by_value(boxes, tf.zeros_like(limits), limits)
