"""Masks on the grid of a box: targets for training, and from predictions back to pixels.

The grid divides a box into size x size bins. Positions are exact: the centre of pixel 0 is at 0.5.
Conventions that differ by half a pixel shift small objects visibly.
"""

import numpy as np
import tensorflow as tf

# Samples of a bin along each axis, as in `roi_align`.
SAMPLES = 2


def mask_targets(
    pixels: tf.Tensor, offsets: tf.Tensor, crops: tf.Tensor, boxes: tf.Tensor, size: int
) -> tf.Tensor:
    """Return for each bin of boxes whether it belongs to the mask of an instance.

    A bin belongs to it if at least half of its `SAMPLES`² sample points lie on pixels of the mask.

    Args:
        pixels: (s,) uint8, the pixels of all masks of an image, 0 or 1, each mask in C order.
        offsets: (k,) int32, the first pixel of the mask of each box.
        crops: (k, 4) int32, the box of that mask in pixels of the image; pixels outside are 0.
        boxes: (k, 4).
        size: number of bins along each axis.

    Returns:
        (k, size, size) float32, 0 or 1.
    """
    points = (np.arange(size * SAMPLES) + 0.5) / (size * SAMPLES)
    points = tf.constant(points, boxes.dtype)
    axes = []
    for axis in (0, 1):
        first, last = boxes[:, axis, None], boxes[:, axis + 2, None]
        position = tf.cast(tf.floor(first + (last - first) * points), tf.int32)
        position -= crops[:, axis, None]
        length = crops[:, axis + 2, None] - crops[:, axis, None]
        inside = (position >= 0) & (position < length)
        axes.append((tf.clip_by_value(position, 0, tf.maximum(length - 1, 0)), inside))
    (rows, rows_inside), (columns, columns_inside) = axes
    width = (crops[:, 3] - crops[:, 1])[:, None, None]
    index = offsets[:, None, None] + rows[:, :, None] * width + columns[:, None, :]
    index = tf.clip_by_value(index, 0, tf.shape(pixels)[0] - 1)  # of padding
    inside = rows_inside[:, :, None] & columns_inside[:, None, :]
    values = tf.where(inside, tf.gather(pixels, index), tf.zeros((), pixels.dtype))
    values = tf.reshape(tf.cast(values, tf.float32), (-1, size, SAMPLES, size, SAMPLES))
    return tf.cast(tf.reduce_mean(values, axis=(2, 4)) >= 0.5, tf.float32)


def paste_mask(
    scores: np.ndarray, box: np.ndarray, height: int, width: int, threshold: float = 0.5
) -> tuple[np.ndarray, int, int]:
    """Return the pixels of a predicted mask.

    The scores are interpolated linearly between the centres of the bins, and are 0 outside the box.

    Args:
        scores: (size, size), of the bins of the box.
        box: (4,) in pixels of the image.
        height, width: of the image.
        threshold: the lowest score, at the centre of a pixel, with which it is in the mask.

    Returns:
        The mask, (rows, columns) bool, and the first row and column of it in the image. A pixel is
        covered if its centre is in the box.
    """
    y1, x1, y2, x2 = np.asarray(box, np.float64).tolist()
    rows, row_weights = _weights(y1, y2, height, scores.shape[0])
    columns, column_weights = _weights(x1, x2, width, scores.shape[1])
    mask = row_weights @ np.asarray(scores, np.float32) @ column_weights.T >= threshold
    return mask, rows.start, columns.start


def _weights(first: float, last: float, limit: int, bins: int) -> tuple[range, np.ndarray]:
    """Return the pixels with their centres in an interval, and the weights of the bins for each.

    Returns:
        The pixels, and (pixels, bins) float32.
    """
    begin = min(max(int(np.ceil(first - 0.5)), 0), limit)
    end = min(max(int(np.ceil(last - 0.5)), begin), limit)
    centres = np.arange(begin, end) + 0.5
    position = (centres - first) / max(last - first, 1e-9) * bins - 0.5
    distance = np.abs(position[:, None] - np.arange(bins))
    return range(begin, end), np.maximum(1 - distance, 0).astype(np.float32)
