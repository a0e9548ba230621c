"""Which pixels an output of an encoder depends on, computed from its layers.

Output number i of an axis depends on the pixels from `i * stride + first` to `i * stride + last`.
The rules for each layer follow Araujo, Norris and Sim, "Computing Receptive Fields of Convolutional
Neural Networks", Distill 2019 (https://distill.pub/2019/computing-receptive-fields).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np

from gigatile.errors import UserError

_WINDOWED = (
    keras.layers.Conv2D,
    keras.layers.DepthwiseConv2D,
    keras.layers.SeparableConv2D,
    keras.layers.MaxPooling2D,
    keras.layers.AveragePooling2D,
)
# Each value of the output depends on the channels of one position.
_POINTWISE = (
    keras.layers.Activation,
    keras.layers.Dense,
    keras.layers.ELU,
    keras.layers.Identity,
    keras.layers.LeakyReLU,
    keras.layers.Normalization,
    keras.layers.ReLU,
    keras.layers.Rescaling,
)
_MERGES = (
    keras.layers.Add,
    keras.layers.Average,
    keras.layers.Concatenate,
    keras.layers.Maximum,
    keras.layers.Minimum,
    keras.layers.Multiply,
    keras.layers.Subtract,
)
_CHANNELS = (-1, 3)


@dataclass(frozen=True)
class Field:
    """The receptive field along an axis, for a picture of one size.

    Attributes:
        size: number of outputs.
        stride: pixels between the fields of two neighbouring outputs.
        first, last: offsets of the field's ends; pixels outside the picture do not exist.
    """

    size: int
    stride: int = 1
    first: int = 0
    last: int = 0

    def pixels(self, start: int, stop: int) -> tuple[int, int]:
        """Return the pixels [first, end) that the outputs [start, stop) depend on."""
        return start * self.stride + self.first, (stop - 1) * self.stride + self.last + 1

    def centres(self) -> np.ndarray:
        """Return the centre of each output's field, (size,) float64.

        In pixels from the border of the picture: the first pixel is from 0 to 1.
        """
        return np.arange(self.size) * self.stride + (self.first + self.last + 1) / 2

    def enlarged(self, outputs: int) -> "Field":
        """Return the field for a picture with more outputs."""
        return replace(self, size=self.size + outputs)


Fields = tuple[Field, Field]


class FieldsBySize:
    """The receptive field of an encoder for pictures of any size.

    Following the layers takes a second for a large encoder, so it is done once for each remainder
    of the size by the total stride: `stride` more pixels give one more output, and nothing else.
    """

    def __init__(self, encoder: keras.Model) -> None:
        """Use an encoder; see `receptive_field`."""
        self._encoder = encoder
        self._known: dict[tuple[int, int], tuple[int, int, Fields]] = {}

    def get(self, height: int, width: int) -> Fields:
        """Return the field for a picture; see `receptive_field`."""
        for known_height, known_width, fields in self._known.values():
            (down, rest), (across, rest_across) = (
                divmod(size - known, field.stride)
                for size, known, field in zip(
                    (height, width), (known_height, known_width), fields, strict=True
                )
            )
            rows, columns = fields[0].enlarged(down), fields[1].enlarged(across)
            # A smaller picture may be too small for a layer, so its layers are followed again.
            if not rest and not rest_across and down >= 0 and across >= 0:
                return rows, columns
        fields = receptive_field(self._encoder, height, width)
        self._known[height % fields[0].stride, width % fields[1].stride] = height, width, fields
        return fields


def receptive_field(encoder: keras.Model, height: int, width: int) -> Fields:
    """Return the receptive field of an encoder along the rows and the columns.

    Args:
        encoder: a functional model from pictures (n, height, width, channels) to embeddings
            (n, rows, columns, channels).
        height, width: of the picture, in pixels. The padding `same` depends on them.

    Raises:
        UserError: a layer is not local, so that a window cannot replace the picture; or the picture
            is smaller than the receptive field needs.
    """
    (field,) = _fields_of(encoder, [(Field(height), Field(width))])
    return field


def _fields_of(model: keras.Model, inputs: Sequence[Fields]) -> list[Fields]:
    """Return the fields of the outputs of a model, in which the inputs have given fields."""
    if isinstance(model, keras.Sequential):
        model = keras.Model(model.inputs, model.outputs)
    elif not isinstance(model, keras.Function):
        raise _refused(model, "it is a model of which the layers cannot be followed")
    fields: dict[int, Fields] = {}
    kept: list[Any] = []  # while a tensor exists, no other one has its id

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [t for t in keras.tree.flatten((args, kwargs)) if id(t) in fields]
        outputs = layer(*args, **kwargs)
        before = [fields[id(tensor)] for tensor in tensors]
        if isinstance(layer, keras.Model):
            after = _fields_of(layer, before)
        else:
            after = [_field_after(layer, before)]
        for tensor, field in zip(keras.tree.flatten(outputs), after, strict=True):
            fields[id(tensor)] = field
            kept.append(tensor)
        return outputs

    tensors = keras.tree.map_structure(
        lambda tensor: keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype), model.input
    )
    for tensor, field in zip(keras.tree.flatten(tensors), inputs, strict=True):
        fields[id(tensor)] = field
    clone = keras.models.clone_model(
        model, input_tensors=tensors, clone_function=lambda layer: layer, call_function=call
    )
    outputs = keras.tree.flatten(clone.outputs)
    if not all(id(tensor) in fields for tensor in outputs):
        raise UserError(f"{model.name}: contains an operation that is not a layer")
    return [fields[id(tensor)] for tensor in outputs]


def _field_after(layer: Any, before: Sequence[Fields]) -> Fields:
    """Return the field of the output of a layer.

    Raises:
        UserError: the layer is not local.
    """
    if not before:
        raise _refused(layer, "its input is not computed by layers from the picture")
    if not type(layer).__module__.startswith("keras."):
        raise _refused(layer, "what it computes is not known; use the layers of Keras")
    activation = getattr(layer, "activation", None)
    name = getattr(activation, "__name__", "")
    if activation is not None and activation is not getattr(keras.activations, name, None):
        raise _refused(layer, "its activation is not a function of keras.activations")
    if getattr(layer, "data_format", None) == "channels_first":
        raise _refused(layer, "its channels come first")
    if isinstance(layer, _MERGES):
        if isinstance(layer, keras.layers.Concatenate) and layer.axis not in _CHANNELS:
            raise _refused(layer, "it concatenates positions")
        rows, columns = (_merged(layer, [pair[axis] for pair in before]) for axis in (0, 1))
        return rows, columns
    (pair,) = before
    if isinstance(layer, _WINDOWED):
        rows, columns = (_windowed(layer, pair[axis], axis) for axis in (0, 1))
        return rows, columns
    if isinstance(layer, keras.layers.ZeroPadding2D | keras.layers.Cropping2D):
        sign = 1 if isinstance(layer, keras.layers.ZeroPadding2D) else -1
        amounts = layer.padding if sign > 0 else layer.cropping
        rows, columns = (
            _shifted(layer, field, sign * start, sign * end)
            for field, (start, end) in zip(pair, amounts, strict=True)
        )
        return rows, columns
    _check_pointwise(layer)
    return pair


def _check_pointwise(layer: Any) -> None:
    if isinstance(layer, keras.layers.BatchNormalization):
        if layer.trainable or layer.axis not in _CHANNELS:
            raise _refused(
                layer, "it normalises by statistics of the batch; freeze it (trainable = False)"
            )
    elif isinstance(layer, keras.layers.LayerNormalization | keras.layers.RMSNormalization):
        axes = layer.axis if isinstance(layer.axis, list | tuple) else [layer.axis]
        if len(axes) != 1 or axes[0] not in _CHANNELS:
            raise _refused(layer, "it normalises over positions; use axis=-1")
    elif isinstance(layer, keras.layers.PReLU):
        if list(layer.shared_axes or ()) != [1, 2]:
            raise _refused(layer, "its weights differ by position; use shared_axes=[1, 2]")
    elif isinstance(layer, keras.layers.Softmax):
        if layer.axis not in _CHANNELS:
            raise _refused(layer, "it normalises over positions; use axis=-1")
    elif not isinstance(layer, _POINTWISE):
        raise _refused(layer, "an output of it may depend on every pixel of the picture")


def _windowed(layer: Any, field: Field, axis: int) -> Field:
    """Return the field after a convolution or pooling."""
    kernel = _of_axis(getattr(layer, "kernel_size", None) or layer.pool_size, axis)
    step = _of_axis(layer.strides, axis)
    dilation = _of_axis(getattr(layer, "dilation_rate", 1), axis)
    span = (kernel - 1) * dilation + 1
    if layer.padding == "same":
        size = -(-field.size // step)
        # As TensorFlow pads, the odd pixel at the end.
        before = max((size - 1) * step + span - field.size, 0) // 2
    elif layer.padding == "valid":
        size, before = (field.size - span) // step + 1, 0
    else:
        raise _refused(layer, f"its padding is {layer.padding!r}; must be same or valid")
    if size < 1:
        raise _too_small(layer, field)
    return Field(
        size,
        field.stride * step,
        field.first - before * field.stride,
        field.last + (span - 1 - before) * field.stride,
    )


def _shifted(layer: Any, field: Field, start: int, end: int) -> Field:
    """Return the field after padding, or cropping with negative numbers."""
    size, offset = field.size + start + end, start * field.stride
    if size < 1:
        raise _too_small(layer, field)
    if start < 0 or end < 0:
        # As after a convolution with a kernel of the cropped positions and one more: a window needs
        # the pixels that the layer crops.
        return Field(size, field.stride, field.first, field.last - (start + end) * field.stride)
    return Field(size, field.stride, field.first - offset, field.last - offset)


def _merged(layer: Any, fields: Sequence[Field]) -> Field:
    """Return the field of values that depend on all of several inputs."""
    if len({(field.size, field.stride) for field in fields}) > 1:
        raise _refused(layer, "its inputs have different sizes or strides")
    return Field(
        fields[0].size,
        fields[0].stride,
        min(field.first for field in fields),
        max(field.last for field in fields),
    )


def _of_axis(value: Any, axis: int) -> int:
    return int(value[axis]) if isinstance(value, list | tuple) else int(value)


def _refused(layer: Any, reason: str) -> UserError:
    return UserError(
        f"the encoder's layer {layer.name} ({type(layer).__name__}) is not local: {reason}"
    )


def _too_small(layer: Any, field: Field) -> UserError:
    return UserError(
        f"the picture is too small for the encoder: {field.size} value(s) reach its layer "
        f"{layer.name} ({type(layer).__name__})"
    )
