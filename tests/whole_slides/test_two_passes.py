"""Windows give the pooled embedding and gradients of the whole picture, to rounding."""

import itertools
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, assume, example, given, settings
from hypothesis import strategies as st
from random_encoders import (
    CHANNELS,
    ENCODER,
    build,
    layer_lists,
    picture_of,
    random_pixels,
    windows_with_tissue,
)

from gigatile.errors import UserError
from gigatile.whole_slides.aggregators import Aggregator, Attention, Max, Mean
from gigatile.whole_slides.receptive_field import receptive_field
from gigatile.whole_slides.two_passes import TwoPasses
from gigatile.whole_slides.windows import Span, divide

L = keras.layers
AGGREGATORS = ["max", "mean", "attention"]
pytestmark = pytest.mark.usefixtures("double_precision")


def build_aggregator(name: str, channels: int) -> Aggregator:
    """Build an aggregator; gated attention as by Ilse et al. 2018."""
    if name != "attention":
        return {"max": Max, "mean": Mean}[name]()
    inputs = keras.Input((None, None, channels))
    # Large weights, so that the scores differ.
    dense = {"kernel_initializer": keras.initializers.RandomNormal(stddev=2.0)}
    value = L.Dense(5, activation="tanh", **dense)(inputs)
    gate = L.Dense(5, activation="sigmoid", **dense)(inputs)
    return Attention(keras.Model(inputs, L.Dense(1, **dense)(L.Multiply()([value, gate]))))


def loss_of(pooled: tf.Tensor) -> tf.Tensor:
    """Return a loss of pooled embeddings (channels,)."""
    weights = tf.constant(np.random.default_rng(3).normal(size=pooled.shape))
    return tf.nn.softplus(tf.tensordot(pooled, weights, 1))


def plain(encoder, aggregator, pixels, tissue):
    """Return loss and gradients by one backpropagation through the whole picture."""
    variables = [*encoder.trainable_variables, *aggregator.variables]
    with tf.GradientTape() as tape:
        rows = tf.boolean_mask(encoder(pixels[None], training=True)[0], tissue)
        if isinstance(aggregator, Max):
            # Like `Max`, not like tf.reduce_max, which divides a gradient between equal values.
            pooled = tf.gather(tf.transpose(rows), tf.argmax(rows), axis=1, batch_dims=1)
        elif isinstance(aggregator, Mean):
            pooled = tf.reduce_mean(rows, axis=0)
        else:
            shares = tf.nn.softmax(aggregator.scores(rows))
            pooled = tf.linalg.matvec(rows, shares, transpose_a=True)
        loss = loss_of(pooled)
    zero = tf.UnconnectedGradients.ZERO
    return loss, tape.gradient(loss, [v.value for v in variables], unconnected_gradients=zero)


def two(encoder, aggregator, picture, window=0):
    """Return loss, gradients and the number of windows that have one, by two passes."""
    passes = TwoPasses(encoder, aggregator, pixels=tf.float64, window=window)
    (state,) = passes.pool([picture])
    pooled = tf.constant(aggregator.pooled(state))
    with tf.GradientTape() as tape:
        tape.watch(pooled)
        loss = loss_of(pooled)
    of_pooled = tape.gradient(loss, pooled).numpy()[None]
    return loss, *passes.gradients([picture], [state], of_pooled)


def assert_same(ours, expected):
    np.testing.assert_allclose(ours[0], expected[0], rtol=1e-12)
    for gradient, other in zip(ours[1], expected[1], strict=True):
        np.testing.assert_allclose(gradient, other, rtol=1e-9, atol=1e-12)


def random_tissue(fields, share: float, seed: int = 5) -> np.ndarray:
    """Return a mask of positions with at least one."""
    random = np.random.default_rng(seed)
    tissue = random.random([field.size for field in fields]) < share
    tissue.flat[random.integers(tissue.size)] = True
    return tissue


# Layers for which the receptive field is not all that a window needs.
CROPPED = [("crop", (1, 1), 1, "same", 1, 2, 1), ("conv", (3, 3), 1, "same", 1, 0, 0)]
PADDED = [("conv", (3, 3), 1, "valid", 1, 0, 0), ("pad", (1, 1), 1, "same", 1, 2, 2)]


# Shrinking would take minutes: each example is compiled.
@settings(
    max_examples=12,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@example(CROPPED, 20, 21, 9, "attention", 1, 0)
@example(PADDED, 8, 7, 2, "mean", 1, 100)
@given(
    layer_lists(),
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(1, 20),
    st.sampled_from(AGGREGATORS),
    st.sampled_from([0, 0.1, 0.6, 1]),
    st.sampled_from([0, 15, 30, 100]),
)
def test_gradients_are_those_of_the_whole_picture(layers, height, width, side, name, share, window):
    encoder = build(layers)
    try:
        fields = receptive_field(encoder, height, width)
    except UserError as error:
        assert "too small" in str(error)
        assume(False)
    pixels, tissue = random_pixels(height, width), random_tissue(fields, share)
    aggregator = build_aggregator(name, encoder.output_shape[-1])
    expected = plain(encoder, aggregator, pixels, tissue)
    picture = picture_of(pixels, fields, side, tissue)
    assert_same(two(encoder, aggregator, picture, window), expected)


@pytest.mark.parametrize("name", ["mean", "attention"])
def test_halo_one_pixel_too_small_is_wrong(name):
    """The encoder depends on every pixel of the computed field, so none can be left out."""
    encoder = build([("conv", (5, 5), 1, "same", 1, 0, 0), ("conv", (3, 3), 1, "same", 2, 0, 0)])
    aggregator, pixels = build_aggregator(name, 4), random_pixels(41, 37)
    fields = receptive_field(encoder, 41, 37)
    assert [(field.first, field.last) for field in fields] == [(-4, 4), (-4, 4)]
    tissue = random_tissue(fields, 0.7)
    expected = plain(encoder, aggregator, pixels, tissue)
    assert_same(two(encoder, aggregator, picture_of(pixels, fields, 10, tissue)), expected)
    for change in ({"first": -3}, {"last": 3}):
        small = tuple(replace(field, **change) for field in fields)
        ours = two(encoder, aggregator, picture_of(pixels, small, 10, tissue))
        assert abs(ours[0] - expected[0]) > 1e-6
        assert max(np.abs(a - b).max() for a, b in zip(ours[1], expected[1], strict=True)) > 1e-6


def test_max_repeats_only_windows_that_matter():
    encoder = build(ENCODER)
    pixels = random_pixels(200, 190)
    fields = receptive_field(encoder, 200, 190)
    picture = picture_of(pixels, fields, 5, np.ones([field.size for field in fields], bool))
    read, repeated = [], []

    def read_pixels(window):
        read.append(picture.windows.index(window))
        return picture.read_pixels(window)

    watched = replace(picture, read_pixels=read_pixels)
    passes = TwoPasses(encoder, Max(), pixels=tf.float64)
    (state,) = passes.pool([watched])
    assert sorted(read) == list(range(10 * 10))
    values = tf.boolean_mask(encoder(pixels[None])[0], picture.tissue)
    np.testing.assert_allclose(Max().pooled(state), tf.reduce_max(values, axis=0), rtol=1e-12)
    # The gradient of a single channel runs the window with its largest value, and no other.
    for channel, gradient in enumerate(np.eye(encoder.output_shape[-1])):
        read.clear()
        _, again = passes.gradients([watched], [state], gradient[None])
        assert (read, again) == ([int(state[1, channel])], 1)
        repeated.append(read[0])
    read.clear()
    _, again = passes.gradients([watched], [state], np.ones((1, 4)))
    assert sorted(read) == sorted(set(repeated)) and again == len(set(repeated)) > 1


def test_max_does_not_depend_on_the_order_of_windows_and_keeps_nan():
    """Of equal values, the one of the first window has the gradient."""
    values = {0: [1.0, 5, 2], 1: [3.0, 5, np.nan], 2: [3.0, 4, 2]}
    states = []
    for order in itertools.permutations(values):
        state, parts = Max().start(3), []
        for window in order:
            embeddings = tf.constant([[0.0] * 3, values[window]], tf.float64)
            state = Max().add(tf.constant(state), embeddings, tf.constant(window)).numpy()
            alone = Max().add(tf.constant(Max().start(3)), embeddings, tf.constant(window))
            parts.append(alone.numpy())
        states += [state, Max().merge(np.stack(parts))]
    for state in states:
        np.testing.assert_array_equal(state[0], [3, 5, np.nan])
        np.testing.assert_array_equal(state[1], [1, 0, 1])


def test_max_of_overflowing_values_has_positions():
    """Minus infinity is a value, too: a gradient of it must not be looked for in window -1."""
    lowest = tf.fill((2, 3), tf.constant(-np.inf, tf.float64))
    none = Max().start(3)
    state = Max().add(tf.constant(none), lowest, tf.constant(4)).numpy()
    for merged in (Max().merge(np.stack([none, state])), Max().merge(np.stack([state, none]))):
        np.testing.assert_array_equal(merged, [[-np.inf] * 3, [4] * 3, [0] * 3])
    assert Max().windows_with_gradient(state, np.ones(3)) == {4}
    np.testing.assert_array_equal(Max().merge(np.stack([none, none])), none)


def test_slide_without_a_position_is_refused():
    encoder = build([("conv", (3, 3), 1, "valid", 1, 0, 0)])
    pixels = random_pixels(20, 20)
    fields = receptive_field(encoder, 20, 20)
    picture = picture_of(pixels, fields, 5, np.zeros([field.size for field in fields], bool))
    for aggregator in (Max(), Mean()):
        with pytest.raises(UserError, match="no position of the encoder"):
            TwoPasses(encoder, aggregator, pixels=tf.float64).pool([picture])


@pytest.mark.parametrize("name", AGGREGATORS)
def test_last_windows_run_once(name):
    """As many as fit into the memory of one window; the gradients are the same."""
    encoder, aggregator = build(ENCODER), build_aggregator(name, 4)
    pixels = random_pixels(90, 70)
    fields = receptive_field(encoder, 90, 70)
    tissue = random_tissue(fields, 0.6)
    picture = picture_of(pixels, fields, 8, tissue)
    expected = plain(encoder, aggregator, pixels, tissue)
    areas = [window.area for window in picture.windows]
    read = []

    def read_pixels(window):
        read.append(picture.windows.index(window))
        return picture.read_pixels(window)

    watched = replace(picture, read_pixels=read_pixels)
    for side in (0, 40, 60, 1000):
        order = sorted(range(len(areas)), key=lambda number: -areas[number])
        left = np.cumsum([areas[number] for number in order][::-1])[::-1]
        again = [number for number, area in zip(order, left, strict=True) if area > side**2]
        read.clear()
        ours = two(encoder, aggregator, watched, side)
        assert_same(ours, expected)
        if name != "max":  # all windows have a gradient
            assert sorted(read) == sorted([*range(len(areas)), *again]), side
    assert not again


def test_activations_of_an_earlier_step_are_not_used():
    """A step may end between the passes."""
    encoder = build(ENCODER)
    pictures = []
    for side in (40, 90):
        fields = receptive_field(encoder, side, side)
        pixels = random_pixels(side, side, side)
        pictures.append(picture_of(pixels, fields, 8, random_tissue(fields, 1)))
    small, large = pictures
    # The activations of all windows of the small picture fit, but not those of the large one.
    assert sum(w.area for w in small.windows) <= 80**2 < sum(w.area for w in large.windows[:-4])
    passes = TwoPasses(encoder, Mean(), pixels=tf.float64, window=80)
    passes.pool([small])
    for weight in encoder.trainable_variables:
        weight.assign(weight * 1.5)
    states = passes.pool([large])
    fresh = TwoPasses(encoder, Mean(), pixels=tf.float64)
    expected, _ = fresh.gradients([large], states, np.ones((1, 4)))
    for _ in range(2):  # the second time without activations
        ours, _ = passes.gradients([large], states, np.ones((1, 4)))
        for gradient, other in zip(ours, expected, strict=True):
            np.testing.assert_allclose(gradient, other, rtol=1e-12)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_slides_without_a_gradient_are_not_read_again(name):
    encoder = build(ENCODER)
    fields = receptive_field(encoder, 30, 30)
    picture = picture_of(random_pixels(30, 30), fields, 4, random_tissue(fields, 1))
    passes = TwoPasses(encoder, build_aggregator(name, 4), pixels=tf.float64, window=1000)
    states = passes.pool([picture, picture])
    first = np.array([[1.0] * 4, [0.0] * 4])
    read = passes.gradients([picture, picture], states, first)[1]
    assert 0 < read <= len(picture.windows) == 4
    assert passes.gradients([picture, picture], states, 0 * first)[1] == 0


def test_windows_compute_each_output_once():
    encoder = build(ENCODER)
    fields = receptive_field(encoder, 131, 66)
    windows = divide(fields, 131, 66, 7)
    counts = np.zeros([field.size for field in fields], int)
    for window in windows:
        counts[slice(*window.rows.outputs), slice(*window.columns.outputs)] += 1
        for span, size in ((window.rows, 131), (window.columns, 66)):
            first, end = span.pixels
            assert first % 4 == 0 and (size - (end - first)) % 4 == 0 and end <= size
            assert span.outputs[1] - span.outputs[0] <= 7
    assert (counts == 1).all()
    assert windows[0].rows.outputs[0] == 0 and windows[0].rows.offset == 0
    assert windows[0].rows == Span((0, 6), (0, 43), 0)


def test_windows_around_tissue_compute_each_position_with_tissue_once():
    fields = receptive_field(build(ENCODER), 131, 66)
    tissue = random_tissue(fields, 0.03)
    counts = np.zeros(tissue.shape, int)
    for window in windows_with_tissue(fields, 131, 66, 7, tissue):
        area = slice(*window.rows.outputs), slice(*window.columns.outputs)
        counts[area] += 1
        # The smallest one: there is tissue on each side.
        some = tissue[area]
        assert all(side.any() for side in (some[0], some[-1], some[:, 0], some[:, -1]))
    assert (counts[tissue] == 1).all() and counts.max() == 1 and (counts == 0).any()


@pytest.mark.parametrize("build_norm", [L.BatchNormalization, L.RMSNormalization])
def test_local_normalisations_and_nested_models_are_exact(build_norm):
    inner, norm = build(ENCODER), build_norm()
    norm.trainable = build_norm is L.RMSNormalization
    inputs = keras.Input((None, None, CHANNELS))
    encoder = keras.Model(inputs, L.Conv2D(2, 3, padding="same")(norm(inner(inputs))))
    for weight in norm.weights:
        weight.assign(np.random.default_rng(2).uniform(0.5, 2, weight.shape))
    pixels, aggregator = random_pixels(75, 90), Mean()
    fields = receptive_field(encoder, 75, 90)
    tissue = random_tissue(fields, 0.5)
    expected = plain(encoder, aggregator, pixels, tissue)
    assert_same(two(encoder, aggregator, picture_of(pixels, fields, 4, tissue)), expected)


@pytest.mark.parametrize("window", [0, 1000])
@pytest.mark.parametrize("work", ["embed", "_differentiate"])
def test_window_that_does_not_fit_is_named(work, window):
    """In either pass, also if its activations were kept."""
    encoder = build(ENCODER)
    fields = receptive_field(encoder, 40, 30)
    picture = picture_of(random_pixels(40, 30), fields, 100, random_tissue(fields, 1))
    passes = TwoPasses(encoder, Mean(), pixels=tf.float64, window=window)

    def fail(*inputs):
        raise tf.errors.ResourceExhaustedError(None, None, "out of memory")

    setattr(passes, work, fail)
    with pytest.raises(UserError, match=r"a window of 30×40 px .*set whole_slides.window to 20"):
        passes.gradients([picture], passes.pool([picture]), np.ones((1, 4)))
