"""Windows give the embeddings and gradients of the whole picture, to rounding."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gigatile.errors import UserError
from gigatile.whole_slides.receptive_field import Field, receptive_field
from gigatile.whole_slides.two_passes import gradients
from gigatile.whole_slides.windows import Span, Window, divide

CHANNELS = 3
L = keras.layers


@pytest.fixture(autouse=True)
def double_precision():
    before = keras.config.floatx(), keras.mixed_precision.global_policy()
    keras.config.set_floatx("float64")
    keras.mixed_precision.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before[0])
    keras.mixed_precision.set_dtype_policy(before[1])


@st.composite
def layer_lists(draw):
    """A few layers: kernels, strides, dilations and paddings; pairs of axes may differ."""
    layers = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(
            st.sampled_from(["conv", "depthwise", "max", "average", "pad", "norm", "residual"])
        )
        kernel = (draw(st.integers(1, 5)), draw(st.integers(1, 5)))
        stride = draw(st.integers(1, 3))
        padding = draw(st.sampled_from(["same", "valid"]))
        dilation = draw(st.integers(1, 3)) if stride == 1 else 1
        start, end = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        layers.append((kind, kernel, stride, padding, dilation, start, end))
    return layers


def build(layers, seed: int = 1) -> keras.Model:
    keras.utils.set_random_seed(seed)
    x = inputs = keras.Input((None, None, CHANNELS))
    for kind, kernel, stride, padding, dilation, start, end in layers:
        window = {"strides": stride, "padding": padding}
        if kind == "conv":
            x = L.Conv2D(4, kernel, dilation_rate=dilation, activation="tanh", **window)(x)
        elif kind == "depthwise":
            x = L.DepthwiseConv2D(kernel, dilation_rate=dilation, activation="tanh", **window)(x)
        elif kind == "max":
            x = L.MaxPooling2D(kernel, **window)(x)
        elif kind == "average":
            x = L.AveragePooling2D(kernel, **window)(x)
        elif kind == "pad":
            x = L.ZeroPadding2D(((start, end), (end, start)))(x)
        elif kind == "norm":
            x = L.LayerNormalization(axis=-1)(x)
        else:
            branch = L.Conv2D(x.shape[-1], 3, padding="same", activation="tanh")(x)
            branch = L.Conv2D(x.shape[-1], 3, padding="same", dilation_rate=2)(branch)
            x = L.Add()([x, branch])
    return keras.Model(inputs, x)


def head(name: str, channels: int):
    """Return a loss of embeddings, and its variables; gated attention as by Ilse et al. 2018."""
    random = np.random.default_rng(3)
    shapes = [(channels,), (channels, 5), (channels, 5), (5,)]
    weights, value, gate, attention = (tf.Variable(random.normal(size=shape)) for shape in shapes)

    def loss(grid):
        rows = tf.reshape(grid, (-1, channels))
        if name == "max":
            pooled = tf.reduce_max(rows, axis=0)
        elif name == "mean":
            pooled = tf.reduce_mean(rows, axis=0)
        else:
            hidden = tf.tanh(rows @ value) * tf.sigmoid(rows @ gate)
            shares = tf.nn.softmax(tf.linalg.matvec(hidden, attention))
            pooled = tf.linalg.matvec(rows, shares, transpose_a=True)
        return tf.nn.softplus(tf.tensordot(pooled, weights, 1))

    return loss, [weights, value, gate, attention]


def plain(encoder, picture, loss_of, variables):
    """Return loss and gradients by one backpropagation through the whole picture."""
    trained = [variable.value for variable in encoder.trainable_variables]
    with tf.GradientTape() as tape:
        loss = loss_of(encoder(picture[None], training=True)[0])
    zero = tf.UnconnectedGradients.ZERO
    return loss, tape.gradient(loss, [*trained, *variables], unconnected_gradients=zero)


def two(encoder, picture, loss_of, variables, side, fields=None):
    height, width, _ = picture.shape
    fields = fields or receptive_field(encoder, height, width)

    def read(window: Window):
        return picture[slice(*window.rows.pixels), slice(*window.columns.pixels)]

    windows = divide(fields, height, width, side)
    return gradients(encoder, windows, read, loss_of, variables), len(windows)


def assert_same(ours, loss, expected):
    np.testing.assert_allclose(ours.loss, loss, rtol=1e-12)
    for gradient, other in zip([*ours.encoder, *ours.head], expected, strict=True):
        np.testing.assert_allclose(gradient, other, rtol=1e-9, atol=1e-12)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    layer_lists(),
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(1, 20),
    st.sampled_from(["max", "mean", "attention"]),
)
def test_gradients_are_those_of_the_whole_picture(layers, height, width, side, aggregator):
    encoder = build(layers)
    picture = tf.constant(np.random.default_rng(7).normal(size=(height, width, CHANNELS)))
    try:
        receptive_field(encoder, height, width)
    except UserError as error:
        assert "too small" in str(error)
        return
    loss_of, variables = head(aggregator, encoder.output_shape[-1])
    loss, expected = plain(encoder, picture, loss_of, variables)
    ours, _ = two(encoder, picture, loss_of, variables, side)
    assert_same(ours, loss, expected)


ENCODER = [
    ("conv", (5, 5), 2, "same", 1, 0, 0),
    ("residual", (1, 1), 1, "same", 1, 0, 0),
    ("max", (3, 3), 2, "same", 1, 0, 0),
    ("conv", (3, 3), 1, "same", 2, 0, 0),
]


@pytest.mark.parametrize("aggregator", ["mean", "attention"])
@pytest.mark.parametrize("end", ["first", "last"])
def test_halo_one_pixel_too_small_is_wrong(aggregator, end):
    """The encoder depends on every pixel of the computed field, so none can be left out."""
    encoder = build([("conv", (5, 5), 1, "same", 1, 0, 0), ("conv", (3, 3), 1, "same", 2, 0, 0)])
    picture = tf.constant(np.random.default_rng(7).normal(size=(41, 37, CHANNELS)))
    loss_of, variables = head(aggregator, encoder.output_shape[-1])
    loss, expected = plain(encoder, picture, loss_of, variables)
    fields = receptive_field(encoder, 41, 37)
    assert [(field.first, field.last) for field in fields] == [(-4, 4), (-4, 4)]
    assert_same(two(encoder, picture, loss_of, variables, 10, fields)[0], loss, expected)
    change = {"first": -3} if end == "first" else {"last": 3}
    small = tuple(Field(**(vars(field) | change)) for field in fields)
    with pytest.raises(AssertionError):
        assert_same(two(encoder, picture, loss_of, variables, 10, small)[0], loss, expected)


def test_max_repeats_only_windows_that_matter():
    encoder = build(ENCODER)
    picture = tf.constant(np.random.default_rng(7).normal(size=(200, 190, CHANNELS)))
    loss_of, variables = head("max", encoder.output_shape[-1])
    ours, windows = two(encoder, picture, loss_of, variables, 5)
    assert windows == 10 * 10 and ours.repeated <= encoder.output_shape[-1]


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
    assert (counts == 1).all()
    assert windows[0].rows == Span((0, 7), (0, 47), 0)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (lambda x: L.GroupNormalization(1)(x), "may depend on every pixel"),
        (lambda x: L.BatchNormalization()(x), "statistics of the batch; freeze it"),
        (lambda x: L.LayerNormalization(axis=[1, 2, 3])(x), "normalises over positions"),
        (lambda x: L.UpSampling2D(2)(x), "may depend on every pixel"),
        (
            lambda x: L.Multiply()([x, L.GlobalAveragePooling2D(keepdims=True)(x)]),
            "depend on every",
        ),
        (lambda x: L.Conv2DTranspose(3, 3, strides=2)(x), "may depend on every pixel"),
        (lambda x: L.SpatialDropout2D(0.5)(x), "may depend on every pixel"),
        (lambda x: L.Concatenate(axis=1)([x, x]), "concatenates positions"),
        (
            lambda x: L.Add()([x, L.Conv2D(3, 1, strides=2)(L.ZeroPadding2D(16)(x))]),
            "different sizes or strides",
        ),
    ],
)
def test_layers_that_are_not_local_are_refused(layer, reason):
    inputs = keras.Input((32, 32, CHANNELS))
    with pytest.raises(UserError, match=f"is not local: .*{reason}"):
        receptive_field(keras.Model(inputs, layer(inputs)), 32, 32)


def test_frozen_batch_normalisation_and_nested_models_are_local():
    inner = build(ENCODER)
    inputs = keras.Input((None, None, CHANNELS))
    norm = L.BatchNormalization(trainable=False)
    encoder = keras.Model(inputs, L.Conv2D(2, 3, padding="same")(norm(inner(inputs))))
    picture = tf.constant(np.random.default_rng(7).normal(size=(75, 90, CHANNELS)))
    loss_of, variables = head("mean", 2)
    loss, expected = plain(encoder, picture, loss_of, variables)
    assert_same(two(encoder, picture, loss_of, variables, 4)[0], loss, expected)
