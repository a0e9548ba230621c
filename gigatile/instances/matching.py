"""Match boxes with the instances of an image, and sample some of them for the losses.

Matches and sizes of the samples are those of detectron2. The random numbers follow from the seed of
each training sample, so they don't depend on the number of ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf

# The matches of `match_boxes` that are not the index of an instance.
BACKGROUND, IGNORED = -1, -2


def match_boxes(
    iou: tf.Tensor, exists: tf.Tensor, low: float, high: float, keep_best: bool
) -> tf.Tensor:
    """Return the instance that each box is matched with.

    Args:
        iou: (boxes, instances), the intersection over union.
        exists: (instances,) bool; False for padding.
        low: boxes below this overlap with every instance are background.
        high: boxes of at least this overlap are matched; those between the two are ignored.
        keep_best: whether to match the boxes with the largest overlap of an instance even if it is
            smaller than `high`, provided it is not 0.

    Returns:
        (boxes,) int32: the index of the instance with the largest overlap, `BACKGROUND` or
        `IGNORED`.
    """
    # One more column, so that an image without instances has a maximum, too.
    iou = tf.where(exists, iou, -1.0)
    iou = tf.concat([iou, tf.fill((tf.shape(iou)[0], 1), tf.constant(-0.5, iou.dtype))], axis=1)
    largest = tf.reduce_max(iou, axis=1)
    best = tf.argmax(iou, axis=1, output_type=tf.int32)
    matches = tf.where(largest >= high, best, tf.where(largest < low, BACKGROUND, IGNORED))
    if keep_best:
        of_instance = tf.reduce_max(iou, axis=0)
        is_best = tf.reduce_any((iou == of_instance) & (of_instance > 0), axis=1)
        matches = tf.where(is_best, best, matches)
    return matches


def sample_matches(
    matches: tf.Tensor, seed: tf.Tensor, count: int, positive: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Sample matched and background boxes at random.

    Args:
        matches: (boxes,) of `match_boxes`.
        seed: (2,) int32.
        count: the most boxes to sample. If there are fewer matched boxes than their share,
            background boxes take their place.
        positive: largest share of matched boxes.

    Returns:
        The indices of the matched boxes, (p,) int32, then those of background boxes, (b,) int32,
        and for each of the p + b whether it counts, bool. p is count x positive and b is count,
        or the number of boxes if that is smaller.
    """
    random = tf.random.stateless_uniform(tf.shape(matches), seed, alg="philox")
    boxes = tf.shape(matches)[0]
    matched, background = matches >= 0, matches == BACKGROUND
    limit = tf.minimum(int(count * positive), boxes)
    values, chosen = tf.math.top_k(tf.where(matched, random, -1.0), limit)
    exists = values >= 0
    rest = count - tf.reduce_sum(tf.cast(exists, tf.int32))
    limit = tf.minimum(count, boxes)
    values, others = tf.math.top_k(tf.where(background, random, -1.0), limit)
    others_exist = (values >= 0) & (tf.range(limit) < rest)
    return chosen, others, tf.concat([exists, others_exist], axis=0)


@dataclass(frozen=True)
class SampledBoxes:
    """The sampled boxes of a batch; see `sample_matches`.

    Attributes:
        matched: (n, p) int32, indices of matched boxes.
        background: (n, b) int32, indices of background boxes.
        counts: (n, p + b) bool.
        instances: (n, p) int32, the instance of each matched box; 0 for padding.
    """

    matched: tf.Tensor
    background: tf.Tensor
    counts: tf.Tensor
    instances: tf.Tensor

    @property
    def all(self) -> tf.Tensor:
        """The indices of matched, then of background boxes: (n, p + b) int32."""
        return tf.concat([self.matched, self.background], axis=1)

    @property
    def matched_exist(self) -> tf.Tensor:
        """Which of the matched boxes count: (n, p) bool."""
        return self.counts[:, : tf.shape(self.matched)[1]]


def sample_batch(
    match: Callable[..., tf.Tensor],
    inputs: Sequence[tf.Tensor],
    seeds: tf.Tensor,
    count: int,
    positive: float,
) -> SampledBoxes:
    """Match and sample the boxes of each image of a batch.

    Args:
        match: returns the matches of an image, (boxes,), from its part of each of the `inputs`.
        inputs: (n, …) each.
        seeds: (n, 2) int32.
        count, positive: see `sample_matches`.
    """

    def sample(values: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        *parts, seed = values
        matches = match(*parts)
        matched, background, counts = sample_matches(matches, seed, count, positive)
        return matched, background, counts, tf.maximum(tf.gather(matches, matched), 0)

    sampled = tf.map_fn(
        sample,
        (*inputs, seeds),
        fn_output_signature=(tf.int32, tf.int32, tf.bool, tf.int32),
        parallel_iterations=8,
    )
    return SampledBoxes(*sampled)
