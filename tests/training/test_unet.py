"""U-Nets: shapes, precision, and saved files."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from gigatile.models.saving import save_model
from gigatile.models.unet import (
    BLOCKS,
    MIN_SIDE,
    WIDTHS,
    _residual_block,
    build,
    strides_for,
)
from gigatile.settings.train import TrainSettings
from gigatile.training.task import Networks

PATCH = (16, 24, 32)


def built(patch=PATCH, channels=2, outputs=3, activation="sigmoid", **settings) -> Networks:
    settings = TrainSettings(model=settings.pop("model", "small_unet"), **settings)
    return build(settings, patch, channels, outputs, activation)


def images(patch=PATCH, n=2, channels=2) -> np.ndarray:
    return np.random.default_rng(2).normal(size=(n, *patch, channels)).astype(np.float16)


@pytest.fixture(autouse=True)
def _own_policy():
    """The dtype policy is global in Keras."""
    yield
    keras.mixed_precision.set_dtype_policy("float32")


@pytest.fixture(scope="module", params=["small_unet", "small_residual_unet"])
def plain(request) -> Networks:
    return built(model=request.param)


# --- Shapes


@pytest.mark.parametrize(
    ("patch", "levels", "strides"),
    [
        ((16, 16, 16), 4, [(2, 2, 2)] * 2),
        ((32, 32, 32), 4, [(2, 2, 2)] * 3),
        ((128, 128, 128), 4, [(2, 2, 2)] * 3),
        ((128, 128, 128), 6, [(2, 2, 2)] * 5),
        ((16, 24, 32), 4, [(2, 2, 2), (2, 2, 2), (1, 1, 2)]),
        ((16, 128, 64), 6, [(2, 2, 2), (2, 2, 2), (1, 2, 2), (1, 2, 2), (1, 2, 1)]),
        # An odd side is not halved: transposed convolutions could not restore it.
        ((72, 72, 72), 6, [(2, 2, 2)] * 3),
    ],
)
def test_sides_are_halved_down_to_the_minimum(patch, levels, strides):
    assert strides_for(patch, levels) == strides
    smallest = np.array(patch) // np.prod(strides, axis=0)
    assert (smallest >= MIN_SIDE).all()
    np.testing.assert_array_equal(smallest * np.prod(strides, axis=0), patch)


@pytest.mark.parametrize(
    ("patch", "shapes"),
    [
        ((16, 16, 16), [(16, 16, 16)]),
        ((16, 24, 32), [(16, 24, 32), (8, 12, 16)]),
        ((16, 64, 16), [(16, 64, 16), (8, 32, 8)]),
        ((32, 32, 40), [(32, 32, 40), (16, 16, 20)]),
    ],
)
def test_scores_and_logits_have_the_right_shapes(patch, shapes):
    networks = built(patch)
    levels = networks.trained(images(patch), training=True)
    levels = levels if isinstance(levels, list) else [levels]
    assert [tuple(logits.shape) for logits in levels] == [(2, *shape, 3) for shape in shapes]
    assert {logits.dtype.name for logits in levels} == {"float32"}
    scores = networks.model(images(patch))
    assert (tuple(scores.shape), scores.dtype.name) == ((2, *patch, 3), "float32")
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-levels[0].numpy())), atol=1e-6)
    assert networks.model.input_shape == (None, *patch, 2)


def test_lowest_two_levels_have_no_output():
    networks = built((64, 64, 64), model="unet")
    sides = [shape[1] for shape in networks.trained.output_shape]
    assert sides == [64, 32, 16], "of 64, 32, 16, 8 and 4"
    assert len(WIDTHS["unet"]) > 5


def test_label_scores_sum_to_one():
    scores = built(outputs=4, activation="softmax").model(images()).numpy()
    np.testing.assert_allclose(scores.sum(axis=-1), 1, atol=1e-5)
    assert scores.min() > 0


def test_scores_do_not_depend_on_the_batch(plain):
    shown = images()
    alone = [plain.model(shown[n : n + 1]).numpy()[0] for n in range(2)]
    np.testing.assert_allclose(plain.model(shown), alone, atol=1e-5)


def test_trained_weights_are_those_of_the_model(plain):
    """Both networks share their weights, and every weight has a gradient."""
    used = {id(weight) for weight in plain.model.weights}
    assert used <= {id(weight) for weight in plain.trained.weights}
    assert not plain.trained.non_trainable_variables
    with tf.GradientTape() as tape:
        total = tf.add_n([tf.reduce_sum(level**2) for level in plain.trained(images())])
    gradients = tape.gradient(total, [weight.value for weight in plain.trained.weights])
    assert all(gradient is not None and np.any(gradient) for gradient in gradients)


# --- The residual encoder


@pytest.mark.parametrize("patch", [(16, 16, 16), (32, 48, 16)])
def test_residual_encoder_has_its_blocks(patch):
    networks = built(patch, model="small_residual_unet")
    levels = len(strides_for(patch, 4)) + 1
    additions = [layer for layer in networks.trained.layers if isinstance(layer, keras.layers.Add)]
    assert len(additions) == sum(BLOCKS["small_residual_unet"][:levels])
    others = built(patch, model="small_unet")
    shapes = [
        [tuple(each.shape) for each in outputs] if isinstance(outputs, list) else outputs.shape
        for outputs in (networks.trained.outputs, others.trained.outputs)
    ]
    assert shapes[0] == shapes[1]


def test_shortcut_halves_by_the_mean_and_is_added():
    """Without its second normalisation, a block is the leaky ReLU of its shortcut."""
    inputs = keras.Input((8, 8, 8, 4))
    block = keras.Model(inputs, _residual_block(inputs, 6, (2, 2, 2)))
    (narrow,) = (each for each in block.layers if getattr(each, "kernel_size", ()) == (1, 1, 1))
    added = next(each for each in block.layers if isinstance(each, keras.layers.Add))
    last = added.input[0]._keras_history.operation
    last.gamma.assign(0 * last.gamma)
    shown = np.random.default_rng(1).normal(size=(2, 8, 8, 8, 4)).astype(np.float32)
    mean = shown.reshape(2, 4, 2, 4, 2, 4, 2, 4).mean(axis=(2, 4, 6))
    expected = mean @ narrow.kernel.numpy()[0, 0, 0]
    centred = expected - expected.mean(axis=(1, 2, 3), keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(axis=(1, 2, 3), keepdims=True) + 1e-5)
    expected = np.where(expected > 0, expected, 0.01 * expected)
    np.testing.assert_allclose(block(shown), expected, atol=1e-4)


# --- Precision


@pytest.mark.parametrize("mixed", [False, True])
def test_empty_and_extreme_patches_give_finite_gradients(mixed):
    """A patch outside the head, a missing modality, and large values."""
    networks = built(mixed_precision=mixed)
    assert networks.model.layers[1].compute_dtype == ("float16" if mixed else "float32")
    shown = images(n=3)
    shown[0] = 0
    shown[1, ..., 0] = 0
    shown[2, 5] = np.finfo(np.float16).max / 1000
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    optimizer.build(networks.trained.trainable_variables)
    with tf.GradientTape() as tape:
        levels = networks.trained(shown, training=True)
        target = np.zeros(levels[0].shape, np.float32)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(target, levels[0]))
        loss += tf.reduce_mean(levels[1] ** 2)
        scaled = optimizer.scale_loss(loss)
    weights = [weight.value for weight in networks.trained.trainable_variables]
    gradients = tape.gradient(scaled, weights)
    assert np.isfinite(loss) and {gradient.dtype.name for gradient in gradients} == {"float32"}
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    assert np.isfinite(networks.model(shown)).all()


def test_half_precision_gives_similar_scores(plain):
    mixed = built(model=plain.model.name, mixed_precision=True)
    for single, half in zip(plain.model.get_weights(), mixed.model.get_weights(), strict=True):
        np.testing.assert_array_equal(single, half)
    scores = mixed.model(images())
    assert scores.dtype.name == "float32"
    np.testing.assert_allclose(scores, plain.model(images()), atol=0.02)


def test_weights_depend_on_the_seed(plain):
    again, other = (built(model=plain.model.name, seed=seed) for seed in (1, 2))
    for first, second in zip(plain.trained.get_weights(), again.trained.get_weights(), strict=True):
        np.testing.assert_array_equal(first, second)
    pairs = zip(plain.trained.get_weights(), other.trained.get_weights(), strict=True)
    assert any((first != second).any() for first, second in pairs)


# --- Files


@pytest.mark.parametrize(
    ("model", "mixed"),
    [("small_unet", False), ("small_unet", True), ("small_residual_unet", False)],
)
def test_equal_models_are_equal_files_and_load_safely(tmp_path, model, mixed):
    paths = [tmp_path / "one.keras", tmp_path / "two.keras"]
    for path in paths:
        keras.utils.clear_session()  # number the layers as a new process does
        network = built(model=model, mixed_precision=mixed)
        save_model(network.model, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    loaded = keras.models.load_model(paths[0], compile=False, safe_mode=True)
    np.testing.assert_array_equal(loaded(images()), network.model(images()))
