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
    boxes: tf.Tensor, scores: tf.Tensor, count: int, iou: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Apply non-maximum suppression within groups, and keep the best boxes of each image.

    Each group is suppressed alone. Moving the groups apart and suppressing all at once, as
    torchvision's `batched_nms` does, rounds the boxes: with 1,000 classes on a large canvas, by a
    quarter of a pixel.

    Args:
        boxes: (n, groups, m, 4).
        scores: (n, groups, m) float32; `ABSENT` for padding.
        count: the most boxes to keep of an image.
        iou: a box that overlaps more than this with a better one of its group is removed.

    Returns:
        The indices of the boxes kept, in groups x m, best first, padded with 0: (n, count) int32;
        and whether each is one, bool.
    """
    members = boxes.shape[2]

    def suppress(values: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        group_boxes, group_scores = values
        kept, _ = tf.raw_ops.NonMaxSuppressionV4(
            boxes=group_boxes,
            scores=group_scores,
            max_output_size=count,
            iou_threshold=iou,
            score_threshold=ABSENT / 2,
        )
        absent = tf.fill((members,), tf.constant(ABSENT, tf.float32))
        return tf.tensor_scatter_nd_update(absent, kept[:, None], tf.gather(group_scores, kept))

    all_boxes = tf.reshape(tf.cast(boxes, tf.float32), (-1, members, 4))
    remaining = tf.map_fn(
        suppress,
        (all_boxes, tf.reshape(scores, (-1, members))),
        fn_output_signature=tf.TensorSpec((members,), tf.float32),
        parallel_iterations=8,
    )
    remaining = tf.reshape(remaining, (-1, boxes.shape[1] * members))
    chosen = min(count, remaining.shape[1])
    best, kept = tf.math.top_k(remaining, chosen)
    exists = tf.pad(best > ABSENT / 2, [[0, 0], [0, count - chosen]])
    return tf.where(exists, tf.pad(kept, [[0, 0], [0, count - chosen]]), 0), exists


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
    boxes, scores = [], []
    for logits, delta, anchor in zip(objectness, deltas, anchors, strict=True):
        logits = tf.cast(tf.stop_gradient(logits), tf.float32)
        count = min(limits.before, anchor.shape[0])
        best, chosen = tf.math.top_k(logits, count)
        delta = tf.gather(tf.stop_gradient(delta), chosen, batch_dims=1)
        decoded = clip_boxes(decode_boxes(delta, tf.gather(anchor, chosen), WEIGHTS), sizes)
        empty = tf.reduce_any(decoded[..., 2:] <= decoded[..., :2], axis=-1)
        padding = [[0, 0], [0, limits.before - count]]
        boxes.append(tf.pad(decoded, [*padding, [0, 0]]))
        scores.append(tf.pad(tf.where(empty, ABSENT, best), padding, constant_values=ABSENT))
    # The levels don't suppress each other.
    kept, exists = keep_best(
        tf.stack(boxes, axis=1), tf.stack(scores, axis=1), limits.after, limits.iou
    )
    chosen = tf.gather(tf.concat(boxes, axis=1), kept, batch_dims=1)
    return tf.where(exists[..., None], chosen, 0), exists
