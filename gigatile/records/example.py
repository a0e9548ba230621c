"""`tf.train.Example`, the message inside a record, without TensorFlow.

The messages are those of tensorflow/core/example/{example,feature}.proto. An Example contains
Features, a map from a name to a Feature: a list of bytes, floats or integers. They are declared in
a separate descriptor pool, so that TensorFlow can declare the same names in the same process.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

_Field = descriptor_pb2.FieldDescriptorProto

Value = bytes | str | float | int
# One value, or a list or array of values of one kind.
Values = Value | Sequence[Value] | np.ndarray


def _declare() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="gigatile/example.proto", package="gigatile", syntax="proto3"
    )
    for name, kind in (("Bytes", "BYTES"), ("Float", "FLOAT"), ("Int64", "INT64")):
        message = file.message_type.add(name=f"{name}List")
        field = message.field.add(name="value", number=1, label=_Field.LABEL_REPEATED)
        field.type = getattr(_Field, f"TYPE_{kind}")
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("bytes", "float", "int64"), 1):
        feature.field.add(
            name=f"{name}_list",
            number=number,
            label=_Field.LABEL_OPTIONAL,
            type=_Field.TYPE_MESSAGE,
            type_name=f".gigatile.{name.capitalize()}List",
            oneof_index=0,
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
    entry.field.add(
        name="value",
        number=2,
        label=_Field.LABEL_OPTIONAL,
        type=_Field.TYPE_MESSAGE,
        type_name=".gigatile.Feature",
    )
    features.field.add(
        name="feature",
        number=1,
        label=_Field.LABEL_REPEATED,
        type=_Field.TYPE_MESSAGE,
        type_name=".gigatile.Features.FeatureEntry",
    )
    example = file.message_type.add(name="Example")
    example.field.add(
        name="features",
        number=1,
        label=_Field.LABEL_OPTIONAL,
        type=_Field.TYPE_MESSAGE,
        type_name=".gigatile.Features",
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("gigatile.Example"))


_Example = _declare()


def encode_example(features: Mapping[str, Values]) -> bytes:
    """Return a serialised Example; equal input gives equal bytes.

    Args:
        features: a value, or several, by name. An empty list has no kind, and is left out.
    """
    example = _Example()
    for name, value in features.items():
        single = isinstance(value, bytes | str | float | int)
        values: list[Any] = [value] if single else list(value)  # type: ignore[arg-type]
        if not values:
            continue
        feature = example.features.feature[name]
        if isinstance(values[0], str):
            feature.bytes_list.value.extend(text.encode() for text in values)
        elif isinstance(values[0], bytes):
            feature.bytes_list.value.extend(values)
        elif isinstance(values[0], int | np.integer):
            feature.int64_list.value.extend(values)
        else:
            feature.float_list.value.extend(values)
    return example.SerializeToString(deterministic=True)


def first_bytes(data: bytes, name: str) -> bytes:
    """Return the first value of a bytes feature, in a quarter of the time of `decode_example`.

    Raises:
        ValueError: the data are not an Example, or it has no such value.
    """
    return some_bytes(data, name)[0]


def some_bytes(data: bytes, *names: str) -> list[bytes]:
    """Return the first value of each of some bytes features; see `first_bytes`."""
    return _firsts(data, "bytes", names)


def first_ints(data: bytes, *names: str) -> list[int]:
    """Return the first value of each of some int64 features; see `first_bytes`."""
    return _firsts(data, "int64", names)


def _firsts(data: bytes, kind: str, names: Sequence[str]) -> list[Any]:
    features = _parse(data).features.feature
    firsts = []
    for name in names:
        values = getattr(features[name], f"{kind}_list").value
        if not values:
            raise ValueError(f"tf.train.Example without the {kind} feature {name!r}")
        firsts.append(values[0])
    return firsts


def decode_example(data: bytes) -> dict[str, bytes | float | int]:
    """Return the first value of each feature; floats are in single precision.

    Raises:
        ValueError: the data are not an Example.
    """
    example = _parse(data)
    values: dict[str, bytes | float | int] = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        listed: Any = getattr(feature, kind).value if kind else ()
        if len(listed):
            values[name] = listed[0]
    return values


def decode_lists(data: bytes) -> dict[str, list[Any]]:
    """Return all values of each feature: bytes, int, or float in single precision.

    Raises:
        ValueError: the data are not an Example.
    """
    lists = {}
    for name, feature in _parse(data).features.feature.items():
        kind = feature.WhichOneof("kind")
        lists[name] = list(getattr(feature, kind).value) if kind else []
    return lists


def _parse(data: bytes) -> Any:
    try:
        return _Example.FromString(data)
    except DecodeError as error:
        raise ValueError(f"not a tf.train.Example: {error}") from None
