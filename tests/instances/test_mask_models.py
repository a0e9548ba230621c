"""The layers of the Mask R-CNN architectures: levels, frozen stages, pretrained weights."""

import itertools

import keras
import numpy as np
import pytest

from gigatile.models.mask_rcnn import build_mask_rcnn, parts_of
from gigatile.settings.train import TrainSettings

CLASSES, ANCHORS = 3, 2


def build(name: str, frozen: int = 0, pretrained: bool = True, **settings) -> keras.Model:
    given = TrainSettings(model=name, **settings)
    return build_mask_rcnn(given, CLASSES, ANCHORS, frozen, pretrained).model


def backbone_layers(network: keras.Model) -> dict[str, keras.Layer]:
    """Return the layers of ResNet-50 in a network, by name."""
    nested = parts_of(network).trunk.get_layer("resnet50")
    return {layer.name: layer for layer in nested.layers}


@pytest.mark.parametrize("name", ["mask_small", "mask_resnet50", "mask_resnet50_gn"])
def test_outputs_have_the_shapes_of_the_pyramid(name):
    parts = parts_of(build(name))
    outputs = parts.trunk(np.zeros((1, 64, 128, 3), np.float32))
    cells = [(64 // stride, 128 // stride) for stride in (4, 8, 16, 32, 64)]
    channels = 64 if name == "mask_small" else 256
    assert [tuple(level.shape) for level in outputs[:5]] == [(1, *c, channels) for c in cells]
    anchors = [rows * columns * ANCHORS for rows, columns in cells]
    assert [tuple(scores.shape) for scores in outputs[5:10]] == [(1, count) for count in anchors]
    assert [tuple(deltas.shape) for deltas in outputs[10:]] == [(1, count, 4) for count in anchors]
    assert parts.box_head.output_shape == [(None, 1 + CLASSES), (None, CLASSES, 4)]
    assert parts.mask_head.output_shape == (None, 28, 28, CLASSES)


def trainable(network: keras.Model) -> set[str]:
    """Return the stages of ResNet-50 of which something is trained."""
    return {
        name[:5] for name, layer in backbone_layers(network).items() if layer.trainable_variables
    }


def test_frozen_stages_and_batch_normalisations_are_not_trained():
    every = {"conv1", "conv2", "conv3", "conv4", "conv5"}
    for frozen in (0, 2):
        network = build("mask_resnet50", frozen)
        assert trainable(network) == set(sorted(every)[frozen:])
        layers = backbone_layers(network)
        fixed = [
            layer for layer in layers.values() if isinstance(layer, keras.layers.BatchNormalization)
        ]
        assert len(fixed) == 53 and not any(layer.trainable for layer in fixed)
    # Neither do they use the statistics of the batch in training, nor update theirs.
    trunk = parts_of(network).trunk
    images = np.random.default_rng(0).uniform(0, 255, (2, 64, 64, 3)).astype(np.float32)
    before = [np.array(weight) for weight in trunk.weights]
    for ours, other in zip(trunk(images, training=True), trunk(images), strict=True):
        np.testing.assert_array_equal(ours, other)
    for ours, other in zip(trunk.weights, before, strict=True):
        np.testing.assert_array_equal(ours, other)


@pytest.mark.parametrize(
    ("name", "convolutions"),
    [
        ("mask_small", (1, 2, 2, 2, 2)),
        pytest.param("mask_resnet50_gn", (1, 10, 13, 19, 10), marks=pytest.mark.slow),
    ],
)
def test_frozen_stages_with_group_normalisation(name, convolutions):
    """A stage has this many convolutions, each with a kernel and two weights of its norm."""
    counts = [len(build(name, frozen).trainable_variables) for frozen in range(6)]
    assert [a - b for a, b in itertools.pairwise(counts)] == [3 * n for n in convolutions]


def test_pretrained_weights_are_loaded_on_rank_0_only(tmp_path):
    keras.utils.set_random_seed(9)
    stock = keras.applications.ResNet50(include_top=False, weights=None)
    stock.save_weights(tmp_path / "r.weights.h5")
    network = build("mask_resnet50", weights=str(tmp_path / "r.weights.h5"))
    layers = backbone_layers(network)
    for layer in filter(lambda layer: layer.weights, stock.layers):
        for ours, other in zip(layers[layer.name].weights, layer.weights, strict=True):
            np.testing.assert_array_equal(ours, other)
    # Pixels are preprocessed as those that the published weights were trained with.
    pixels = np.random.default_rng(1).integers(0, 256, (1, 64, 64, 3)).astype(np.float32)
    expected = stock(keras.applications.resnet50.preprocess_input(pixels.copy()))
    trunk = parts_of(network).trunk
    last = keras.Model(trunk.input, trunk.get_layer("lateral_5").input)
    np.testing.assert_allclose(last(pixels), expected, rtol=1e-4, atol=1e-4)
    other = build("mask_resnet50", weights=str(tmp_path / "r.weights.h5"), pretrained=False)
    kernels = [backbone_layers(n)["conv1_conv"].kernel.numpy() for n in (network, other)]
    assert not np.array_equal(*kernels)
