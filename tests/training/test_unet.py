"""The U-Nets: their shapes, their arithmetic, and that they come back from a file."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from gigatile.models.saving import save_model
from gigatile.models.unet import MIN_SIDE, WIDTHS, build, strides_for
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
    """The arithmetic is global in Keras."""
    yield
    keras.mixed_precision.set_dtype_policy("float32")


@pytest.fixture(scope="module")
def plain() -> Networks:
    return built()


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
        # An odd side is halved no further: transposed convolutions could not give it back.
        ((72, 72, 72), 6, [(2, 2, 2)] * 3),
    ],
)
def test_a_side_is_halved_while_enough_of_it_is_left(patch, levels, strides):
    assert strides_for(patch, levels) == strides
    least = np.array(patch) // np.prod(strides, axis=0)
    assert (least >= MIN_SIDE).all()
    np.testing.assert_array_equal(least * np.prod(strides, axis=0), patch)


@pytest.mark.parametrize(
    ("patch", "shapes"),
    [
        ((16, 16, 16), [(16, 16, 16)]),
        ((16, 24, 32), [(16, 24, 32), (8, 12, 16)]),
        ((16, 64, 16), [(16, 64, 16), (8, 32, 8)]),
        ((32, 32, 40), [(32, 32, 40), (16, 16, 20)]),
    ],
)
def test_scores_are_of_every_voxel_and_logits_of_the_levels(patch, shapes):
    networks = built(patch)
    found = networks.trained(images(patch), training=True)
    found = found if isinstance(found, list) else [found]
    assert [tuple(logits.shape) for logits in found] == [(2, *shape, 3) for shape in shapes]
    assert {logits.dtype.name for logits in found} == {"float32"}
    scores = networks.model(images(patch))
    assert (tuple(scores.shape), scores.dtype.name) == ((2, *patch, 3), "float32")
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-found[0].numpy())), atol=1e-6)
    assert networks.model.input_shape == (None, *patch, 2)


def test_all_outputs_but_the_two_lowest_levels():
    networks = built((64, 64, 64), model="unet")
    sides = [shape[1] for shape in networks.trained.output_shape]
    assert sides == [64, 32, 16], "of 64, 32, 16, 8 and 4"
    assert len(WIDTHS["unet"]) > 5


def test_labels_have_scores_that_add_up_to_one():
    scores = built(outputs=4, activation="softmax").model(images()).numpy()
    np.testing.assert_allclose(scores.sum(axis=-1), 1, atol=1e-5)
    assert scores.min() > 0


def test_a_patch_does_not_depend_on_its_company(plain):
    shown = images()
    alone = [plain.model(shown[n : n + 1]).numpy()[0] for n in range(2)]
    np.testing.assert_allclose(plain.model(shown), alone, atol=1e-5)


def test_what_is_learnt_is_what_is_used(plain):
    """One set of weights, seen from two sides; each of them has a gradient."""
    used = {id(weight) for weight in plain.model.weights}
    assert used <= {id(weight) for weight in plain.trained.weights}
    assert not plain.trained.non_trainable_variables
    with tf.GradientTape() as tape:
        total = tf.add_n([tf.reduce_sum(level**2) for level in plain.trained(images())])
    gradients = tape.gradient(total, [weight.value for weight in plain.trained.weights])
    assert all(gradient is not None and np.any(gradient) for gradient in gradients)


# --- Arithmetic


@pytest.mark.parametrize("mixed", [False, True])
def test_all_is_finite_even_where_a_patch_has_nothing(mixed):
    """A patch beside the head is 0 everywhere, a filled modality in one channel; some are large."""
    networks = built(mixed_precision=mixed)
    assert networks.model.layers[1].compute_dtype == ("float16" if mixed else "float32")
    shown = images(n=3)
    shown[0] = 0
    shown[1, ..., 0] = 0
    shown[2, 5] = np.finfo(np.float16).max / 1000
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    optimizer.build(networks.trained.trainable_variables)
    with tf.GradientTape() as tape:
        found = networks.trained(shown, training=True)
        truth = np.zeros(found[0].shape, np.float32)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(truth, found[0]))
        loss += tf.reduce_mean(found[1] ** 2)
        scaled = optimizer.scale_loss(loss)
    weights = [weight.value for weight in networks.trained.trainable_variables]
    gradients = tape.gradient(scaled, weights)
    assert np.isfinite(loss) and {one.dtype.name for one in gradients} == {"float32"}
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    assert np.isfinite(networks.model(shown)).all()


def test_half_precision_gives_nearly_the_same_scores(plain):
    mixed = built(mixed_precision=True)
    for one, other in zip(plain.model.get_weights(), mixed.model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    found = mixed.model(images())
    assert found.dtype.name == "float32"
    np.testing.assert_allclose(found, plain.model(images()), atol=0.02)


def test_weights_follow_from_the_seed(plain):
    again, other = built(), built(seed=2)
    for one, two in zip(plain.trained.get_weights(), again.trained.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
    pairs = zip(plain.trained.get_weights(), other.trained.get_weights(), strict=True)
    assert any((one != two).any() for one, two in pairs)


# --- Files


@pytest.mark.parametrize("mixed", [False, True])
def test_a_model_comes_back_in_safe_mode_and_the_same_model_is_the_same_bytes(tmp_path, mixed):
    paths = [tmp_path / "one.keras", tmp_path / "two.keras"]
    for path in paths:
        keras.utils.clear_session()  # as a process of its own numbers its layers
        network = built(mixed_precision=mixed)
        save_model(network.model, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    loaded = keras.models.load_model(paths[0], compile=False, safe_mode=True)
    np.testing.assert_array_equal(loaded(images()), network.model(images()))
