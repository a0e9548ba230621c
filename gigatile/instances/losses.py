"""The losses of Mask R-CNN, each of one image.

The loss of an image does not depend on the other images of its batch, so the gradient does not
depend on how a batch is divided between ranks. The reference implementations compute the mean over
the boxes of all images on a GPU; with one image per GPU, as in tensorpack, both are the same.
"""

import tensorflow as tf


def objectness_loss(logits: tf.Tensor, labels: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Return the mean cross-entropy of sampled anchors.

    Args:
        logits: (n, k).
        labels: (n, k), 1 for anchors that are matched with an instance, else 0.
        counts: (n, k) bool, which anchors are samples and not padding.
    """
    entropy = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, logits.dtype), logits)
    return _mean(entropy, counts)


def class_loss(logits: tf.Tensor, classes: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Return the mean cross-entropy of sampled proposals.

    Args:
        logits: (n, k, 1 + classes); the first is background.
        classes: (n, k) int32, 0 for background.
        counts: (n, k) bool.
    """
    entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, logits)
    return _mean(entropy, counts)


def box_loss(
    deltas: tf.Tensor, expected: tf.Tensor, matched: tf.Tensor, samples: tf.Tensor
) -> tf.Tensor:
    """Return the L1 distance of the deltas of matched boxes, divided by the number of samples.

    Args:
        deltas, expected: (n, k, 4).
        matched: (n, k) bool.
        samples: (n,) the number of samples of each image, matched or background.
    """
    distance = tf.reduce_sum(tf.abs(deltas - expected), axis=-1)
    total = tf.reduce_sum(tf.where(matched, distance, 0), axis=1)
    return total / tf.maximum(tf.cast(samples, total.dtype), 1)


def mask_loss(logits: tf.Tensor, targets: tf.Tensor, matched: tf.Tensor) -> tf.Tensor:
    """Return the mean cross-entropy of the bins of matched proposals.

    Args:
        logits: (n, k, size, size), of the class of each proposal.
        targets: (n, k, size, size), 0 or 1.
        matched: (n, k) bool.
    """
    entropy = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(targets, logits.dtype), logits)
    return _mean(tf.reduce_mean(entropy, axis=(2, 3)), matched)


def _mean(values: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Return the mean of the values that count, per image: (n,), 0 if there are none."""
    total = tf.reduce_sum(tf.where(counts, values, tf.zeros((), values.dtype)), axis=1)
    number = tf.reduce_sum(tf.cast(counts, values.dtype), axis=1)
    return total / tf.maximum(number, 1)
