"""RoIAlign over a feature pyramid.

He et al. 2017, https://arxiv.org/abs/1703.06870, section 3, with half-pixel centres as in
detectron2 (`aligned=True`): the centre of the first cell of a feature map is at 0.5 strides.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

# Samples of a bin along each axis. The paper uses four per bin.
SAMPLES = 2
# Boxes of this size in pixels, the side of ImageNet's pictures, are pooled from this level: Lin et
# al. 2017, https://arxiv.org/abs/1612.03144, equation 1.
CANONICAL_SIZE, CANONICAL_LEVEL = 224.0, 4


def roi_levels(boxes: tf.Tensor, lowest: int, highest: int) -> tf.Tensor:
    """Return the level of the pyramid for each box (…, 4): (…,) int32."""
    sides = tf.maximum(boxes[..., 2:] - boxes[..., :2], 0)
    size = tf.sqrt(tf.cast(tf.reduce_prod(sides, axis=-1), tf.float32))
    # The small number, detectron2's, keeps the logarithm of an empty box finite.
    doublings = tf.math.log(size / CANONICAL_SIZE + 1e-8) / np.log(2).astype(np.float32)
    level = tf.floor(CANONICAL_LEVEL + doublings)
    return tf.cast(tf.clip_by_value(level, lowest, highest), tf.int32)


def roi_align(
    features: Sequence[tf.Tensor], boxes: tf.Tensor, size: int, lowest: int = 2
) -> tf.Tensor:
    """Pool the features of boxes.

    Each bin is the mean of `SAMPLES`² bilinear samples. A sample more than one cell outside the
    feature map is 0; others outside take the value at the border.

    Half-precision features are pooled in single precision, as in torchvision: the gradient of a
    cell is the sum over the bins of hundreds of boxes, and half precision would lose the terms that
    come last.

    Args:
        features: feature maps (n, height, width, channels) of consecutive levels; a cell of level l
            has a side of 2^l pixels.
        boxes: (n, k, 4) in pixels of the image. They get no gradient.
        size: number of bins along each axis.
        lowest: the level of the first feature map.

    Returns:
        (n, k, size, size, channels).
    """
    channels, given = features[0].shape[-1], features[0].dtype
    kind = tf.float32 if given in (tf.float16, tf.bfloat16) else given
    images, count = tf.shape(boxes)[0], tf.shape(boxes)[1]
    shapes = tf.stack([tf.shape(level)[1:3] for level in features])
    cells = tf.reduce_prod(shapes, axis=1)
    # Cast before the reshape, whose gradient adds up the terms of each cell.
    levels = [tf.reshape(tf.cast(level, kind), (images, -1, channels)) for level in features]
    flat = tf.reshape(tf.concat(levels, axis=1), (-1, channels))
    boxes = tf.stop_gradient(boxes)
    coordinates = boxes.dtype
    level = roi_levels(boxes, lowest, lowest + len(features) - 1)
    index = level - lowest
    # The first cell of the level of each box, in the cells of all images.
    start = tf.gather(tf.cumsum(cells, exclusive=True), index)
    start += (tf.range(images) * tf.reduce_sum(cells))[:, None]
    height, width = tf.unstack(tf.gather(shapes, index), axis=-1)
    stride = tf.cast(2**level, coordinates)[..., None]
    offsets = (np.arange(size * SAMPLES) + 0.5) / (size * SAMPLES)
    offsets = tf.constant(offsets, coordinates)
    axes = []
    for axis, limit in ((0, height), (1, width)):
        first, last = boxes[..., axis, None] / stride, boxes[..., axis + 2, None] / stride
        axes.append(_corners(first + (last - first) * offsets - 0.5, limit[..., None]))
    (low_y, high_y, share_y, inside_y), (low_x, high_x, share_x, inside_x) = axes
    pooled = tf.zeros((images * count * size * size, channels), kind)
    rows = ((low_y, 1 - share_y), (high_y, share_y))
    columns = ((low_x, 1 - share_x), (high_x, share_x))
    shape = (images, count, size, SAMPLES, size, SAMPLES)
    for row, row_weight in rows:
        for column, column_weight in columns:
            cell = start[..., None, None] + row[..., None] * width[..., None, None]
            cell = tf.reshape(cell + column[..., None, :], shape)
            weight = (row_weight * inside_y)[..., None] * (column_weight * inside_x)[..., None, :]
            weight = tf.cast(tf.reshape(weight, shape) / SAMPLES**2, kind)
            for i in range(SAMPLES):
                for j in range(SAMPLES):
                    chosen = tf.reshape(cell[:, :, :, i, :, j], (-1,))
                    weights = tf.reshape(weight[:, :, :, i, :, j], (-1, 1))
                    # One sample of each bin after the other: this bounds the memory. Otherwise,
                    # TensorFlow may also add large terms in the order in which they are ready.
                    with tf.control_dependencies([pooled]):
                        pooled += weights * tf.gather(flat, chosen)
    return tf.cast(tf.reshape(pooled, (images, count, size, size, channels)), given)


def _corners(
    positions: tf.Tensor, limit: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the cells around positions, the share of the upper one, and 1 for those inside.

    Args:
        positions: (…, s), in cells, where 0 is the centre of the first.
        limit: (…, 1) int32, number of cells.
    """
    last = tf.cast(limit - 1, positions.dtype)
    inside = tf.cast((positions >= -1) & (positions <= last + 1), positions.dtype)
    clipped = tf.clip_by_value(positions, tf.zeros_like(last), last)
    low = tf.floor(clipped)
    share = clipped - low
    low = tf.cast(low, tf.int32)
    return low, tf.minimum(low + 1, limit - 1), share, inside
