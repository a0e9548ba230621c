"""The receptive field is computed for any size, and layers that are not local are refused."""

import keras
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_encoders import CHANNELS, ENCODER, build, layer_lists

from gigatile.errors import UserError
from gigatile.whole_slides.receptive_field import Field, FieldsBySize, receptive_field

L = keras.layers


def outcome(function, *arguments):
    """Return the result, or the class of the error."""
    try:
        return function(*arguments)
    except UserError:
        return UserError


SIZE = st.integers(1, 40)


# The small picture has an output, but too few pixels for the first layer.
PADDED = [("conv", (5, 5), 1, "valid", 1, 0, 0), ("pad", (1, 1), 1, "same", 1, 2, 2)]


@settings(max_examples=30)
@example(PADDED, [(10, 10), (4, 4)])
@given(layer_lists(), st.lists(st.tuples(SIZE, SIZE), min_size=2, max_size=8))
def test_fields_by_size_are_those_of_each_size(layers, sizes):
    encoder = build(layers)
    by_size = FieldsBySize(encoder)
    for size in sizes:
        assert outcome(by_size.get, *size) == outcome(receptive_field, encoder, *size)


def test_layers_are_followed_once_for_each_remainder(monkeypatch):
    encoder = build(ENCODER)
    by_size = FieldsBySize(encoder)
    expected = {(h, w): receptive_field(encoder, h, w) for h in (40, 44, 41) for w in (20, 60)}
    calls = []
    monkeypatch.setattr(
        "gigatile.whole_slides.receptive_field.receptive_field",
        lambda *arguments: calls.append(arguments) or receptive_field(*arguments),
    )
    assert {size: by_size.get(*size) for size in expected} == expected
    assert len(calls) == 2


def test_centres_are_the_middles_of_the_fields():
    assert Field(3, stride=4, first=-1, last=4).centres().tolist() == [2, 6, 10]
    assert Field(2, stride=1, first=0, last=0).centres().tolist() == [0.5, 1.5]


def centred(x):
    """Subtract the mean over all positions."""
    return x - keras.ops.mean(x, axis=(1, 2), keepdims=True)


class Centring(L.Conv2D):
    def call(self, inputs):
        return centred(super().call(inputs))


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (lambda x: L.GroupNormalization(1)(x), "may depend on every pixel"),
        (lambda x: L.BatchNormalization()(x), "statistics of the batch; freeze it"),
        (lambda x: L.LayerNormalization(axis=[1, 2, 3])(x), "normalises over positions"),
        (lambda x: L.RMSNormalization(axis=[1, 2, 3])(x), "normalises over positions"),
        (lambda x: L.RMSNormalization(axis=2)(x), "normalises over positions"),
        (lambda x: L.Softmax(axis=1)(x), "normalises over positions"),
        (lambda x: L.PReLU()(x), "weights differ by position"),
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
        (lambda x: keras.ops.flip(x, axis=1), "may depend on every pixel"),
        (lambda x: keras.Sequential([L.Conv2D(3, 1), L.Flatten()])(x), "may depend on every"),
        (lambda x: L.Activation(centred)(x), "not a function of keras.activations"),
        (lambda x: L.Conv2D(3, 1, activation=centred)(x), "not a function of keras.activations"),
        (lambda x: L.Activation(keras.ops.flip)(x), "not a function of keras.activations"),
        (lambda x: L.Dense(3, activation=L.LayerNormalization(axis=1))(x), "not a function of"),
        (lambda x: Centring(3, 1)(x), "what it computes is not known"),
    ],
)
def test_layers_that_are_not_local_are_refused(layer, reason):
    inputs = keras.Input((32, 32, CHANNELS))
    with pytest.raises(UserError, match=f"is not local: .*{reason}"):
        receptive_field(keras.Model(inputs, layer(inputs)), 32, 32)


def test_a_picture_smaller_than_the_encoder_needs_is_refused():
    encoder = build([("conv", (5, 3), 1, "valid", 2, 0, 0)])
    assert receptive_field(encoder, 9, 5)[0] == Field(1, 1, 0, 8)
    with pytest.raises(UserError, match="too small for the encoder: 8 value"):
        receptive_field(encoder, 8, 5)
