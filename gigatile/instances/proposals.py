"""Proposals: the best boxes of the region proposal network; and non-maximum suppression."""

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from gigatile.instances.boxes import clip_boxes, decode_boxes

# Weights of the deltas of the region proposal network.
WEIGHTS = (1.0, 1.0, 1.0, 1.0)
# The score of padding.
ABSENT = -1e9


@dataclass(frozen=True)
class ProposalLimits:
    """How many boxes become proposals.

    Attributes:
        before: the most boxes of each level before non-maximum suppression.
        after: the most proposals of an image.
        iou: boxes of a level that overlap more than this with a better box are removed.
    """

    before: int
    after: int
    iou: float = 0.7


def keep_best(
    boxes: tf.Tensor, scores: tf.Tensor, groups: tf.Tensor, count: int, iou: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Apply non-maximum suppression within groups, and keep the best boxes of an image.

    Args:
        boxes: (m, 4) of one image.
        scores: (m,) float32; `ABSENT` for padding.
        groups: (m,) int32; boxes of different groups don't suppress each other.
        count: the most boxes to keep.
        iou: a box that overlaps more than this with a better one of its group is removed.

    Returns:
        The indices of the boxes kept, best first, padded with 0: (count,) int32; and whether each
        is one, bool.
    """
    boxes = tf.cast(boxes, tf.float32)
    # Move the groups apart, as torchvision's `batched_nms` does.
    distance = tf.reduce_max(boxes) - tf.reduce_min(boxes) + 1
    moved = boxes + (tf.cast(groups, tf.float32) * distance)[:, None]
    kept, number = tf.raw_ops.NonMaxSuppressionV4(
        boxes=moved,
        scores=scores,
        max_output_size=count,
        iou_threshold=iou,
        score_threshold=ABSENT / 2,
        pad_to_max_output_size=True,
    )
    exists = tf.range(count) < number
    return tf.where(exists, kept, 0), exists


def propose(
    objectness: Sequence[tf.Tensor],
    deltas: Sequence[tf.Tensor],
    anchors: Sequence[tf.Tensor],
    sizes: tf.Tensor,
    limits: ProposalLimits,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the proposals of a batch, without gradient.

    Args:
        objectness: logits (n, a) of each level.
        deltas: (n, a, 4) of each level.
        anchors: (a, 4) of each level.
        sizes: (n, 2) int32, height and width of the images without padding.
        limits: how many boxes.

    Returns:
        (n, `limits.after`, 4) in the precision of the anchors, best first, padded with 0; and which
        of them exist, (n, `limits.after`) bool.
    """
    boxes, scores, levels = [], [], []
    for level, (logits, delta, anchor) in enumerate(zip(objectness, deltas, anchors, strict=True)):
        logits = tf.cast(tf.stop_gradient(logits), tf.float32)
        count = tf.minimum(limits.before, tf.shape(logits)[1])
        best, chosen = tf.math.top_k(logits, count)
        delta = tf.gather(tf.stop_gradient(delta), chosen, batch_dims=1)
        decoded = clip_boxes(decode_boxes(delta, tf.gather(anchor, chosen), WEIGHTS), sizes)
        empty = tf.reduce_any(decoded[..., 2:] <= decoded[..., :2], axis=-1)
        boxes.append(decoded)
        scores.append(tf.where(empty, ABSENT, best))
        levels.append(tf.fill((count,), level))
    all_boxes, all_scores = tf.concat(boxes, axis=1), tf.concat(scores, axis=1)
    groups = tf.concat(levels, axis=0)

    def of_image(values: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        image_boxes, image_scores = values
        kept, exists = keep_best(image_boxes, image_scores, groups, limits.after, limits.iou)
        return tf.where(exists[:, None], tf.gather(image_boxes, kept), 0), exists

    return tf.map_fn(
        of_image,
        (all_boxes, all_scores),
        fn_output_signature=(
            tf.TensorSpec((limits.after, 4), all_boxes.dtype),
            tf.TensorSpec((limits.after,), tf.bool),
        ),
        parallel_iterations=8,
    )
