"""Mask R-CNN: the losses of a batch, and the detections of images.

He et al. 2017, https://arxiv.org/abs/1703.06870. `gigatile.models.mask_rcnn` has the layers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf

from gigatile.instances import losses
from gigatile.instances.anchors import pyramid_anchors, pyramid_cells
from gigatile.instances.boxes import clip_boxes, decode_boxes, encode_boxes, pairwise_iou
from gigatile.instances.mask_grids import mask_targets
from gigatile.instances.matching import IGNORED, match_boxes, sample_batch
from gigatile.instances.proposals import (
    ABSENT,
    WEIGHTS,
    ProposalLimits,
    keep_best,
    propose,
)
from gigatile.instances.roi_align import roi_align
from gigatile.models.mask_rcnn import BOX_SIZE, MASK_SIZE, MaskRCNNParts
from gigatile.settings.detection import DetectionSettings

STRIDES = (4, 8, 16, 32, 64)
# The levels from which boxes are pooled.
POOLED = len(STRIDES) - 1
# Weights of the deltas of the box head.
BOX_WEIGHTS = (10.0, 10.0, 5.0, 5.0)
# Overlaps below and from which an anchor or a proposal is background or matched.
ANCHOR_IOU, PROPOSAL_IOU = (0.3, 0.7), (0.5, 0.5)
# Largest shares of matched boxes in the losses.
MATCHED_ANCHORS, MATCHED_PROPOSALS = 0.5, 0.25
# Bins of a predicted mask along each axis.
MASK_BINS = 2 * MASK_SIZE
# The terms of the loss, which have equal weights.
LOSSES = ("objectness", "proposal_boxes", "classes", "boxes", "masks")


@dataclass(frozen=True)
class Detections:
    """The detections of a batch, best first, padded with 0.

    Attributes:
        boxes: (n, k, 4) float32, in pixels of the resized images.
        classes: (n, k) int32, from 0.
        scores: (n, k) float32.
        exists: (n, k) bool.
    """

    boxes: tf.Tensor
    classes: tf.Tensor
    scores: tf.Tensor
    exists: tf.Tensor


class MaskRCNN:
    """A model and its settings.

    Attributes:
        parts: the layers.
        settings: the section `detection`.
    """

    def __init__(self, parts: MaskRCNNParts, settings: DetectionSettings) -> None:
        self.parts, self.settings = parts, settings
        self._level_anchors = cache(self._anchors_of)

    def _anchors_of(self, height: int, width: int) -> list[np.ndarray]:
        sizes, ratios = self.settings.anchor_sizes, self.settings.anchor_ratios
        return pyramid_anchors(height, width, STRIDES, sizes, ratios)

    def _anchors(self, images: tf.Tensor, kind: tf.DType) -> list[tf.Tensor]:
        height, width = images.shape[1:3]
        return [tf.constant(level, kind) for level in self._level_anchors(height, width)]

    def _within(self, images: tf.Tensor, sizes: tf.Tensor) -> list[tf.Tensor]:
        """Return for each level which anchors have their cell in the image, (n, a) bool.

        The others are not used: of an 800 x 1,333 image on COCO's canvas, 4 of 10 anchors lie on
        padding, and the loss would learn little from them.
        """
        height, width = images.shape[1:3]
        cells = pyramid_cells(height, width, STRIDES, len(self.settings.anchor_ratios))
        return [tf.reduce_all(level < sizes[:, None], axis=-1) for level in cells]

    def losses(self, images: tf.Tensor, targets: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Return the terms of the loss of each image: (n,) each.

        Args:
            images: (n, height, width, 3), values 0-255; the shape must be static.
            targets: `sizes` (n, 2) int32, height and width without padding; `seeds` (n, 2) int32;
                `boxes` (n, g, 4) float32; `classes` (n, g) int32 from 1, 0 for padding; `crops`
                (n, g, 4) and `offsets` (n, g) int32 and `pixels` (n, s) uint8, the masks: see
                `mask_targets`.
        """
        pyramid, objectness, deltas = self._trunk(images, training=True)
        kind = deltas[0].dtype
        anchors = self._anchors(images, kind)
        boxes = tf.cast(targets["boxes"], kind)
        exists = targets["classes"] > 0
        seeds = targets["seeds"]
        within = self._within(images, targets["sizes"])
        terms = self._proposal_losses(objectness, deltas, anchors, within, boxes, exists, seeds)
        settings = self.settings
        limits = ProposalLimits(settings.rpn_pre_nms_topk_train, settings.rpn_post_nms_topk_train)
        objectness = _absent_outside(objectness, within)
        proposals, proposed = propose(objectness, deltas, anchors, targets["sizes"], limits)
        # With the true boxes, there are matched proposals from the first step on.
        proposals = tf.concat([proposals, boxes], axis=1)
        proposed = tf.concat([proposed, exists], axis=1)
        return terms | self._head_losses(pyramid, proposals, proposed, boxes, exists, targets)

    def _trunk(
        self, images: tf.Tensor, training: bool
    ) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
        outputs = self.parts.trunk(images, training=training)
        count = len(STRIDES)
        return outputs[:POOLED], outputs[count : 2 * count], outputs[2 * count :]

    def _proposal_losses(
        self,
        objectness: list[tf.Tensor],
        deltas: list[tf.Tensor],
        anchors: list[tf.Tensor],
        within: list[tf.Tensor],
        boxes: tf.Tensor,
        exists: tf.Tensor,
        seeds: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        logits, moves = tf.concat(objectness, axis=1), tf.concat(deltas, axis=1)
        every_anchor = tf.concat(anchors, axis=0)

        def match(image_boxes: tf.Tensor, image_exists: tf.Tensor, inside: tf.Tensor) -> tf.Tensor:
            iou = tf.where(inside[:, None], pairwise_iou(every_anchor, image_boxes), 0)
            matches = match_boxes(iou, image_exists, *ANCHOR_IOU, keep_best=True)
            return tf.where(inside, matches, IGNORED)

        count = self.settings.rpn_batch_size_per_image
        inputs = boxes, exists, tf.concat(within, axis=1)
        sampled = sample_batch(match, inputs, seeds, count, MATCHED_ANCHORS)
        matched, matched_exist, chosen = sampled.matched, sampled.matched_exist, sampled.all
        labels = tf.cast(tf.range(tf.shape(chosen)[1]) < tf.shape(matched)[1], tf.int32)
        labels = tf.broadcast_to(labels, tf.shape(chosen))
        moved = tf.gather(moves, matched, batch_dims=1)
        # Padding gets the code of the anchor itself, which is finite.
        matched_anchors = tf.gather(every_anchor, matched)
        expected = tf.gather(boxes, sampled.instances, batch_dims=1)
        expected = tf.where(matched_exist[..., None], expected, matched_anchors)
        expected = encode_boxes(expected, matched_anchors, WEIGHTS)
        samples = tf.reduce_sum(tf.cast(sampled.counts, tf.int32), axis=1)
        scores = tf.gather(logits, chosen, batch_dims=1)
        return {
            "objectness": losses.objectness_loss(scores, labels, sampled.counts),
            "proposal_boxes": losses.box_loss(moved, expected, matched_exist, samples),
        }

    def _head_losses(
        self,
        pyramid: list[tf.Tensor],
        proposals: tf.Tensor,
        proposed: tf.Tensor,
        boxes: tf.Tensor,
        exists: tf.Tensor,
        targets: Mapping[str, Any],
    ) -> dict[str, tf.Tensor]:
        def match(
            image_proposals: tf.Tensor,
            image_proposed: tf.Tensor,
            image_boxes: tf.Tensor,
            image_exists: tf.Tensor,
        ) -> tf.Tensor:
            iou = pairwise_iou(image_proposals, image_boxes)
            matches = match_boxes(iou, image_exists, *PROPOSAL_IOU, keep_best=False)
            return tf.where(image_proposed, matches, IGNORED)

        inputs = (proposals, proposed, boxes, exists)
        count = self.settings.roi_batch_size_per_image
        # Other seeds than those of the anchors.
        sampled = sample_batch(match, inputs, targets["seeds"] + 1, count, MATCHED_PROPOSALS)
        instances, matched_exist = sampled.instances, sampled.matched_exist
        positives = tf.shape(sampled.matched)[1]
        rois = tf.gather(proposals, sampled.all, batch_dims=1)
        classes = tf.gather(targets["classes"], instances, batch_dims=1)
        classes = tf.where(matched_exist, classes, 0)
        labels = tf.pad(classes, [[0, 0], [0, tf.shape(sampled.background)[1]]])
        logits, deltas = self._box_head(pyramid, rois, training=True)
        matched_rois = rois[:, :positives]
        expected = tf.gather(boxes, instances, batch_dims=1)
        anchor = tf.where(
            matched_exist[..., None], matched_rois, tf.constant([0, 0, 1, 1], boxes.dtype)
        )
        expected = tf.where(matched_exist[..., None], expected, anchor)
        expected = encode_boxes(expected, anchor, BOX_WEIGHTS)
        of_class = tf.maximum(classes - 1, 0)
        moved = tf.gather(deltas[:, :positives], of_class, batch_dims=2)
        samples = tf.reduce_sum(tf.cast(sampled.counts, tf.int32), axis=1)
        mask_logits = self._mask_head(pyramid, matched_rois, of_class, training=True)
        masks = tf.map_fn(
            lambda values: mask_targets(values[0], values[1], values[2], values[3], MASK_BINS),
            (
                targets["pixels"],
                tf.gather(targets["offsets"], instances, batch_dims=1),
                tf.gather(targets["crops"], instances, batch_dims=1),
                matched_rois,
            ),
            fn_output_signature=tf.float32,
            parallel_iterations=8,
        )
        return {
            "classes": losses.class_loss(logits, labels, sampled.counts),
            "boxes": losses.box_loss(moved, expected, matched_exist, samples),
            "masks": losses.mask_loss(mask_logits, masks, matched_exist),
        }

    def _box_head(
        self, pyramid: list[tf.Tensor], rois: tf.Tensor, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return logits (n, k, 1 + classes) and deltas (n, k, classes, 4)."""
        pooled = roi_align(pyramid, rois, BOX_SIZE)
        shape = tf.shape(rois)[:2]
        pooled = tf.reshape(pooled, (-1, *pooled.shape[2:]))
        logits, deltas = self.parts.box_head(pooled, training=training)
        logits = tf.reshape(logits, tf.concat([shape, tf.shape(logits)[1:]], axis=0))
        return logits, tf.reshape(deltas, tf.concat([shape, tf.shape(deltas)[1:]], axis=0))

    def _mask_head(
        self, pyramid: list[tf.Tensor], rois: tf.Tensor, classes: tf.Tensor, training: bool
    ) -> tf.Tensor:
        """Return the logits of the masks of these classes, (n, k, 28, 28)."""
        pooled = roi_align(pyramid, rois, MASK_SIZE)
        pooled = tf.reshape(pooled, (-1, *pooled.shape[2:]))
        logits = self.parts.mask_head(pooled, training=training)
        logits = tf.gather(
            tf.transpose(logits, (0, 3, 1, 2)), tf.reshape(classes, (-1,)), batch_dims=1
        )
        return tf.reshape(logits, (tf.shape(rois)[0], -1, MASK_BINS, MASK_BINS))

    def detect(self, images: tf.Tensor, sizes: tf.Tensor) -> tuple[Detections, tf.Tensor]:
        """Return the detections of images, and the scores of their masks.

        Args:
            images: (n, height, width, 3), values 0-255; the shape must be static.
            sizes: (n, 2) int32, height and width without padding.

        Returns:
            The detections, and (n, k, 28, 28) float32: see `paste_mask`.
        """
        settings = self.settings
        pyramid, objectness, deltas = self._trunk(images, training=False)
        anchors = self._anchors(images, deltas[0].dtype)
        limits = ProposalLimits(settings.rpn_pre_nms_topk_test, settings.rpn_post_nms_topk_test)
        objectness = _absent_outside(objectness, self._within(images, sizes))
        proposals, proposed = propose(objectness, deltas, anchors, sizes, limits)
        logits, moves = self._box_head(pyramid, proposals, training=False)
        scores = tf.nn.softmax(logits)[..., 1:]
        boxes = decode_boxes(moves, proposals[:, :, None], BOX_WEIGHTS)
        shape, number = tf.shape(boxes), scores.shape[-1]
        boxes = clip_boxes(tf.reshape(boxes, (shape[0], -1, 4)), sizes)
        boxes = tf.reshape(boxes, (shape[0], limits.after, number, 4))
        usable = proposed[..., None] & (scores > settings.score_threshold)
        usable &= tf.reduce_all(boxes[..., 2:] > boxes[..., :2], axis=-1)
        scores = tf.where(usable, scores, ABSENT)
        # The classes don't suppress each other.
        boxes, scores = tf.transpose(boxes, (0, 2, 1, 3)), tf.transpose(scores, (0, 2, 1))
        count = settings.detections_per_image
        kept, exists = keep_best(boxes, scores, count, settings.nms_threshold)
        boxes = tf.gather(tf.reshape(boxes, (shape[0], -1, 4)), kept, batch_dims=1)
        scores = tf.gather(tf.reshape(scores, (shape[0], -1)), kept, batch_dims=1)
        detections = Detections(
            tf.where(exists[..., None], boxes, 0),
            tf.where(exists, kept // limits.after, 0),
            tf.where(exists, scores, 0),
            exists,
        )
        masks = self._mask_head(pyramid, detections.boxes, detections.classes, training=False)
        return detections, tf.sigmoid(masks)


def _absent_outside(
    objectness: Sequence[tf.Tensor], within: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    return [
        tf.where(inside, logits, ABSENT) for logits, inside in zip(objectness, within, strict=True)
    ]
