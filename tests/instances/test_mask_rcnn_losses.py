"""The losses of Mask R-CNN, compared with loops over the raw outputs of its layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from plain_detection import (
    anchor_boxes,
    cells_within,
    cross_entropy,
    drop_outside,
    encode,
    mask_target,
    match,
    overlaps,
    propose,
    roi_align,
    sample,
    sigmoid_cross_entropy,
)
from tiny_mask_rcnn import CANVAS, SETTINGS, batch_of, build_tiny_model, draw_image, draw_images

from gigatile.instances import mask_rcnn
from gigatile.instances.mask_rcnn import LOSSES

STRIDES = (4, 8, 16, 32, 64)


@pytest.fixture(scope="module")
def model():
    before = keras.mixed_precision.global_policy()
    yield build_tiny_model()
    keras.mixed_precision.set_dtype_policy(before)


@pytest.fixture(scope="module")
def compute(model):
    return tf.function(model.losses, reduce_retracing=True)


def random_numbers(seed: np.ndarray, count: int) -> list[float]:
    return tf.random.stateless_uniform((count,), seed, alg="philox").numpy().tolist()


def proposal_losses(logits, deltas, anchors, within, boxes, seed) -> tuple[float, float]:
    """Return the losses of the region proposal network for an image."""
    # In single precision: anchors that contain a tiny instance have equal overlaps, to rounding.
    iou = overlaps(np.array(anchors, np.float32), boxes).astype(np.float32)
    iou[~np.array(within)] = 0
    matches = match(iou.tolist(), [True] * len(boxes), 0.3, 0.7, keep_best=True)
    matches = [index if inside else -2 for index, inside in zip(matches, within, strict=True)]
    count = SETTINGS.rpn_batch_size_per_image
    matched, background = sample(matches, random_numbers(seed, len(anchors)), count, 0.5)
    total = sum(sigmoid_cross_entropy(logits[index], 1) for index in matched)
    total += sum(sigmoid_cross_entropy(logits[index], 0) for index in background)
    distance = 0.0
    for index in matched:
        expected = encode(boxes[matches[index]], anchors[index], (1, 1, 1, 1))
        distance += sum(abs(a - b) for a, b in zip(deltas[index], expected, strict=True))
    number = len(matched) + len(background)
    return total / number, distance / number


def head_losses(parts, levels, proposals, image, seed) -> tuple[float, float, float]:
    """Return the losses of the heads for an image; its true boxes are the last proposals."""
    boxes = image.boxes
    iou = overlaps(np.array(proposals, np.float32), boxes).astype(np.float32)
    matches = match(iou.tolist(), [True] * len(boxes), 0.5, 0.5, keep_best=False)
    # The numbers of the padding between proposals and true boxes are not used.
    gap = SETTINGS.rpn_post_nms_topk_train - (len(proposals) - len(boxes))
    random = random_numbers(seed + 1, len(proposals) + gap)
    first = len(proposals) - len(boxes)
    random = random[:first] + random[first + gap :]
    matched, background = sample(matches, random, SETTINGS.roi_batch_size_per_image, 0.25)
    classes = distance = bins = 0.0
    for index in matched + background:
        pooled = roi_align(levels, proposals[index], 7)[None].astype(np.float32)
        logits, deltas = (output.numpy()[0] for output in parts.box_head(pooled))
        number = image.classes[matches[index]] if index in matched else 0
        classes += cross_entropy(logits.tolist(), number)
        if not number:
            continue
        instance = matches[index]
        expected = encode(boxes[instance], proposals[index], (10, 10, 5, 5))
        own = deltas[number - 1].tolist()
        distance += sum(abs(a - b) for a, b in zip(own, expected, strict=True))
        pooled = roi_align(levels, proposals[index], 14)[None].astype(np.float32)
        scores = parts.mask_head(pooled).numpy()[0, ..., number - 1]
        target = mask_target(image.masks[instance], proposals[index], 28)
        entropies = [
            sigmoid_cross_entropy(score, label)
            for score, label in zip(scores.ravel().tolist(), target.ravel(), strict=True)
        ]
        bins += sum(entropies) / 28**2
    count = len(matched) + len(background)
    return classes / count, distance / count, bins / max(len(matched), 1)


def plain_losses(model, inputs, image, index) -> dict[str, float]:
    outputs = [output.numpy()[index] for output in model.parts.trunk(inputs)]
    levels = [level.astype(np.float64) for level in outputs[:4]]
    logits, deltas = outputs[5:10], outputs[10:]
    anchors = [
        anchor_boxes(CANVAS // stride, CANVAS // stride, stride, size, SETTINGS.anchor_ratios)
        for stride, size in zip(STRIDES, SETTINGS.anchor_sizes, strict=True)
    ]
    seed = np.array([image.seed, -image.seed], np.int32)
    every_anchor = [anchor for level in anchors for anchor in level]
    within = [cells_within(CANVAS, stride, image.pixels.shape) for stride in STRIDES]
    rpn = proposal_losses(
        np.concatenate(logits),
        np.concatenate(deltas),
        every_anchor,
        np.concatenate(within),
        image.boxes,
        seed,
    )
    logits, deltas, anchors = drop_outside(within, logits, deltas, anchors)
    limits = (
        SETTINGS.rpn_pre_nms_topk_train,
        SETTINGS.rpn_post_nms_topk_train,
        0.7,
    )
    proposals = propose(logits, deltas, anchors, image.pixels.shape[:2], *limits)
    proposals += image.boxes.tolist()
    return dict(
        zip(LOSSES, (*rpn, *head_losses(model.parts, levels, proposals, image, seed)), strict=True)
    )


def test_losses_equal_plain_loops(model, compute):
    images = draw_images()
    inputs, targets = batch_of(images)
    terms = compute(inputs, targets)
    assert set(terms) == set(LOSSES)
    for index, image in enumerate(images):
        expected = plain_losses(model, inputs, image, index)
        ours = {name: float(terms[name][index]) for name in LOSSES}
        assert ours == pytest.approx(expected, rel=1e-4, abs=1e-6), index
        # The case is a hard one: no term is 0 by chance.
        positive = LOSSES if image.masks else ("objectness", "classes")
        assert all(ours[name] > 0.01 for name in positive)
        assert all(ours[name] == 0 for name in LOSSES if name not in positive)


def test_random_images_equal_plain_loops(model, compute):
    random = np.random.default_rng(4)
    for seed in range(6):
        height, width = random.integers(20, CANVAS + 1, 2)
        instances = []
        for _ in range(random.integers(1, 5)):
            corner = random.uniform(0, (height - 8, width - 8))
            far = np.minimum(corner + random.uniform(5, 40, 2), (height, width))
            instances.append((int(random.integers(1, 3)), (*corner, *far)))
        image = draw_image(height, width, 100 + seed, *instances)
        inputs, targets = batch_of([image], slots=4)
        terms = compute(inputs, targets)
        expected = plain_losses(model, inputs, image, 0)
        ours = {name: float(terms[name][0]) for name in LOSSES}
        assert ours == pytest.approx(expected, rel=1e-4, abs=1e-6), seed


def test_losses_of_an_image_do_not_depend_on_the_others(compute):
    """Nor on how many slots for instances and pixels of masks its batch has."""
    images = draw_images()
    together = compute(*batch_of(images, slots=7, more_pixels=40))
    backwards = compute(*batch_of(images[::-1]))
    for index, image in enumerate(images):
        alone = compute(*batch_of([image]))
        for name in LOSSES:
            # To the rounding of convolutions, which depends on the size of the batch.
            for ours in (together[name][index], backwards[name][-1 - index]):
                np.testing.assert_allclose(ours, alone[name][0], atol=1e-6, rtol=1e-5)


def test_losses_depend_on_the_seed_of_the_sample(compute):
    image = draw_images()[0]
    first = compute(*batch_of([image]))
    image.seed = 77
    second = compute(*batch_of([image]))
    assert all(first[name] != second[name] for name in ("objectness", "classes"))


def test_gradients_are_finite_without_instances_and_for_tiny_ones(model):
    for images in ([draw_images()[2]], [draw_images()[3]], [draw_image(1, 1, 9)]):
        inputs, targets = batch_of(images)
        with tf.GradientTape() as tape:
            terms = model.losses(inputs, targets)
            total = tf.add_n([tf.reduce_sum(terms[name]) for name in LOSSES])
        parts = (model.parts.trunk, model.parts.box_head, model.parts.mask_head)
        weights = [weight.value for part in parts for weight in part.trainable_variables]
        gradients = tape.gradient(total, weights, unconnected_gradients="zero")
        assert np.isfinite(total.numpy())
        assert all(np.isfinite(gradient).all() for gradient in gradients)
        assert sum(float(tf.norm(gradient)) for gradient in gradients) > 0.1


def test_box_without_area_is_ignored(compute):
    """An annotation may have such a box: the loss must not be infinite."""
    image = draw_images()[0]
    inputs, targets = batch_of([image])
    boxes = targets["boxes"].numpy()
    boxes[0, 0, 2] = boxes[0, 0, 0]
    terms = compute(inputs, {**targets, "boxes": tf.constant(boxes)})
    assert all(np.isfinite(terms[name][0]) for name in LOSSES)


def test_outputs_of_the_network_are_in_the_order_of_the_anchors(model):
    """Row by row, then the ratios; the four deltas of an anchor follow each other."""
    images = np.random.default_rng(0).uniform(0, 255, (2, 64, 96, 3)).astype(np.float32)
    outputs = [output.numpy() for output in model.parts.trunk(images)]
    layer = model.parts.trunk.get_layer
    for number, stride in enumerate(STRIDES):
        level = outputs[number]
        rows, columns = -(-64 // stride), -(-96 // stride)
        assert level.shape[:3] == (2, rows, columns)
        hidden = layer("rpn")(level)
        logits, deltas = (layer(name)(hidden).numpy() for name in ("objectness", "deltas"))
        index = 0
        for row in range(rows):
            for column in range(columns):
                for ratio in range(3):
                    ours = outputs[5 + number][:, index], outputs[10 + number][:, index]
                    four = deltas[:, row, column, 4 * ratio : 4 * ratio + 4]
                    np.testing.assert_allclose(ours[0], logits[:, row, column, ratio], atol=1e-4)
                    np.testing.assert_allclose(ours[1], four, atol=1e-4)
                    index += 1
        assert index == outputs[5 + number].shape[1] == outputs[10 + number].shape[1]


def test_boxes_are_pooled_from_levels_2_to_5(model, monkeypatch):
    """All boxes of the other tests are pooled from level 2: they are small."""
    calls = []

    def record(features, boxes, size):
        calls.append((size, [tuple(level.shape[1:3]) for level in features]))
        return real(features, boxes, size)

    real = mask_rcnn.roi_align
    monkeypatch.setattr(mask_rcnn, "roi_align", record)
    inputs, targets = batch_of(draw_images()[:1])
    model.losses(inputs, targets)
    model.detect(inputs, targets["sizes"])
    levels = [(16, 16), (8, 8), (4, 4), (2, 2)]
    assert calls == [(size, levels) for size in (7, 14, 7, 14)]


def test_all_weights_have_a_gradient(model):
    """Of the region proposal network, of both heads, and of every level of the pyramid."""
    inputs, targets = batch_of(draw_images()[:2])
    parts = (model.parts.trunk, model.parts.box_head, model.parts.mask_head)
    weights = [weight for part in parts for weight in part.trainable_variables]
    with tf.GradientTape() as tape:
        terms = model.losses(inputs, targets)
        total = tf.add_n([tf.reduce_sum(term) for term in terms.values()])
    gradients = tape.gradient(total, [weight.value for weight in weights])
    silent = [w.path for w, g in zip(weights, gradients, strict=True) if g is None]
    assert silent == []
