"""The detections of Mask R-CNN, compared with loops over the raw outputs of its layers."""

import keras
import numpy as np
import pytest
from plain_detection import (
    area,
    cells_within,
    clip,
    decode,
    drop_outside,
    propose,
    roi_align,
    suppress,
)
from tiny_mask_rcnn import CANVAS, SETTINGS, batch_of, build_tiny_model, draw_images

from gigatile.instances.anchors import pyramid_anchors


@pytest.fixture(scope="module")
def model():
    before = keras.mixed_precision.global_policy()
    yield build_tiny_model(3, classes=4)
    keras.mixed_precision.set_dtype_policy(before)


def plain_detections(model, inputs, size, index) -> list[tuple[int, float, list, np.ndarray]]:
    """Return class, score, box and mask scores of each detection of an image."""
    outputs = [output.numpy()[index] for output in model.parts.trunk(inputs)]
    levels = [level.astype(np.float64) for level in outputs[:4]]
    anchors = pyramid_anchors(
        CANVAS, CANVAS, (4, 8, 16, 32, 64), SETTINGS.anchor_sizes, SETTINGS.anchor_ratios
    )
    anchors = [level.astype(np.float64) for level in anchors]
    before, after = SETTINGS.rpn_pre_nms_topk_test, SETTINGS.rpn_post_nms_topk_test
    within = [cells_within(CANVAS, stride, size) for stride in (4, 8, 16, 32, 64)]
    of_levels = drop_outside(within, outputs[5:10], outputs[10:], anchors)
    proposals = propose(*of_levels, size, before, after, 0.7)
    boxes, scores, groups = [], [], []
    for proposal in proposals:
        pooled = roi_align(levels, proposal, 7)[None].astype(np.float32)
        logits, deltas = (output.numpy()[0] for output in model.parts.box_head(pooled))
        shares = np.exp(logits.astype(np.float64))
        shares /= shares.sum()
        for number in range(3):
            box = clip(decode(deltas[number].tolist(), proposal, (10, 10, 5, 5)), *size)
            if shares[1 + number] > SETTINGS.score_threshold and area(box) > 0:
                boxes.append(box)
                scores.append(shares[1 + number])
                groups.append(number)
    count = SETTINGS.detections_per_image
    kept = suppress(boxes, scores, groups, count, SETTINGS.nms_threshold)
    detections = []
    for number in kept:
        pooled = roi_align(levels, boxes[number], 14)[None].astype(np.float32)
        logits = model.parts.mask_head(pooled).numpy()[0, ..., groups[number]]
        detections.append(
            (groups[number], scores[number], boxes[number], 1 / (1 + np.exp(-logits)))
        )
    return detections


def test_detections_equal_plain_loops(model):
    images = draw_images()
    inputs, targets = batch_of(images)
    detections, masks = model.detect(inputs, targets["sizes"])
    counts = []
    for index, image in enumerate(images):
        expected = plain_detections(model, inputs, image.pixels.shape[:2], index)
        counts.append(len(expected))
        exists = detections.exists[index].numpy()
        assert exists.tolist() == [i < len(expected) for i in range(SETTINGS.detections_per_image)]
        for slot, (number, score, box, scores) in enumerate(expected):
            assert detections.classes[index, slot] == number
            np.testing.assert_allclose(detections.scores[index, slot], score, atol=1e-4)
            np.testing.assert_allclose(detections.boxes[index, slot], box, atol=0.01)
            np.testing.assert_allclose(masks[index, slot], scores, atol=1e-3)
        for padding in (detections.boxes, detections.classes, detections.scores):
            assert (padding[index].numpy()[len(expected) :] == 0).all()
    seen = np.unique(detections.classes.numpy()[detections.exists.numpy()])
    assert len(seen) > 1 and max(counts) > 3


def test_detections_do_not_depend_on_the_other_images(model):
    inputs, targets = batch_of(draw_images())
    sizes = targets["sizes"]
    together, masks = model.detect(inputs, sizes)
    for index in range(len(inputs)):
        part = slice(index, index + 1)
        alone, mask = model.detect(inputs[part], sizes[part])
        np.testing.assert_allclose(alone.boxes[0], together.boxes[index], atol=0.01)
        np.testing.assert_array_equal(alone.classes[0], together.classes[index])
        np.testing.assert_allclose(alone.scores[0], together.scores[index], atol=1e-4)
        np.testing.assert_allclose(mask[0], masks[index], atol=1e-3)
