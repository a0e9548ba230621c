"""The boundary loss of segmentations: difference over union."""

import tensorflow as tf

# The upper limit of alpha that the authors recommend.
MAX_ALPHA = 0.8


def edges(reference: tf.Tensor) -> tf.Tensor:
    """Return 1 at the voxels of a target with a neighbour outside it, across one of six faces.

    The patch goes on at its sides: where the patch cuts a target, there is no edge.

    Args:
        reference: (n, x, y, z, targets), 0 or 1.
    """
    inner = reference
    for axis in (1, 2, 3):
        sides = [[int(axis == number)] * 2 for number in range(5)]
        padded = tf.pad(reference, sides, constant_values=1)
        size = tf.shape(reference)[axis]
        before, after = (
            tf.gather(padded, tf.range(first, first + size), axis=axis) for first in (0, 2)
        )
        inner *= before * after
    return reference - inner


def boundary_loss(scores: tf.Tensor, reference: tf.Tensor, smooth: float) -> tf.Tensor:
    """Return the mean boundary difference over union of the targets: (n,) float32.

    Sun et al. 2023, https://arxiv.org/abs/2308.00220: the difference of both segmentations, divided
    by their union without the share alpha of their intersection. Alpha is 1 - 2 x surface / size of
    the reference, so that for a large target the voxels in its middle count less. It is limited to
    0 to 0.8.

    Args:
        scores, reference: (n, x, y, z, targets).
        smooth: added to numerator and denominator.
    """
    axes = (1, 2, 3)
    size = tf.reduce_sum(reference, axis=axes)
    surface = tf.reduce_sum(edges(reference), axis=axes)
    alpha = tf.clip_by_value(1 - 2 * tf.math.divide_no_nan(surface, size), 0.0, MAX_ALPHA)
    both = tf.reduce_sum(scores * reference, axis=axes)
    squares = tf.reduce_sum(scores**2, axis=axes) + tf.reduce_sum(reference**2, axis=axes)
    difference = squares - 2 * both
    return tf.reduce_mean((difference + smooth) / (squares - (1 + alpha) * both + smooth), axis=1)
