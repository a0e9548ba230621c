"""Mask R-CNN in mixed precision, compared with single precision."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_mask_rcnn import SETTINGS, batch_of, build_tiny_network, draw_image

from gigatile.instances.mask_rcnn import LOSSES, MaskRCNN
from gigatile.models.mask_rcnn import MaskRCNNParts, parts_of

CANVAS = (64, 1120)
# Half precision has steps of a pixel beyond 1,024 pixels: coordinates in it would be wrong by half
# the size of the smallest instances.
INSTANCES = (
    (1, (3, 1045, 22, 1058)),
    (2, (30, 1070, 61, 1107)),
    (1, (10, 1099, 19, 1120)),
    (2, (40, 1032, 53, 1047)),
    (1, (5, 1072, 33, 1087)),
)
# A single proposal, which is the best one by far, and the true boxes. Which of many proposals are
# sampled would depend on the rounding of their scores.
LIMITS = {
    "canvas": CANVAS,
    "rpn_pre_nms_topk_train": 1,
    "rpn_post_nms_topk_train": 1,
    "rpn_batch_size_per_image": 64,
    "roi_batch_size_per_image": 64,
}
# The loss scale of a training after some steps; without one, small gradients would be 0.
SCALE = 1024.0


def build(mixed: bool) -> keras.Model:
    before = keras.mixed_precision.global_policy()
    try:
        return build_tiny_network(mixed=mixed, box_deltas=20, classes=4)
    finally:
        keras.mixed_precision.set_dtype_policy(before)


def step(mixed: bool) -> tuple[MaskRCNNParts, dict[str, tf.Tensor], list[np.ndarray]]:
    """Return the model, and losses and gradients of a step."""
    network = build(mixed)
    parts = parts_of(network)
    model = MaskRCNN(parts, SETTINGS.model_copy(update=LIMITS))
    inputs, targets = batch_of([draw_image(*CANVAS, 3, *INSTANCES)], canvas=CANVAS)
    # Half precision has all integers up to 2,048.
    targets["boxes"] -= 0.3
    with tf.GradientTape() as tape:
        terms = model.losses(inputs, targets)
        loss = SCALE * tf.add_n([tf.reduce_sum(terms[name]) for name in LOSSES])
    weights = [weight.value for weight in network.trainable_variables]
    gradients = tape.gradient(loss, weights, unconnected_gradients="zero")
    return parts, terms, [gradient.numpy() / SCALE for gradient in gradients]


@pytest.mark.long
@pytest.mark.slow  # half precision is slow without a GPU
def test_losses_and_gradients_agree_to_rounding():
    _, expected, expected_gradients = step(mixed=False)
    parts, terms, gradients = step(mixed=True)
    for name in LOSSES:
        assert terms[name].dtype == tf.float32
        # The logits of the classes are large, and so is their rounding.
        rtol = 6e-3 if name == "classes" else 1.5e-3
        np.testing.assert_allclose(terms[name], expected[name], rtol=rtol, err_msg=name)
        assert expected[name] > 0.1
    # Half precision is really used, and the gradients are for weights in single precision.
    assert parts.trunk.outputs[0].dtype == "float16"
    for ours, other in zip(gradients, expected_gradients, strict=True):
        assert ours.dtype == np.float32
        # A unit that rounding switches on or off changes the gradients below it by some percent.
        assert np.linalg.norm(ours - other) < 0.2 * np.linalg.norm(other)
    ours, other = (np.concatenate([*map(np.ravel, g)]) for g in (gradients, expected_gradients))
    assert np.linalg.norm(ours - other) < 0.1 * np.linalg.norm(other)


def test_outputs_for_the_losses_are_in_single_precision():
    """Their cross-entropies, softmax and box coding follow; so do boxes and anchors."""
    parts = parts_of(build(mixed=True))
    outputs = [*parts.trunk.outputs[5:], *parts.box_head.outputs, *parts.mask_head.outputs]
    assert len(outputs) == 13 and {output.dtype for output in outputs} == {"float32"}
    last = [
        part.get_layer(name).compute_dtype
        for part, name in (
            (parts.box_head, "classes"),
            (parts.box_head, "box_deltas"),
            (parts.mask_head, "mask_logits"),
        )
    ]
    assert last == ["float32"] * 3
