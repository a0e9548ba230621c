"""Records of images with instances: round trips, other readers, and damaged records."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gigatile.errors import UserError
from gigatile.instances.annotations import (
    Instances,
    decode_mask,
    empty_instances,
    encode_mask,
    stack_instances,
)
from gigatile.records.example import decode_example, decode_lists, encode_example
from gigatile.records.instances import (
    AnnotatedImage,
    decode_annotated,
    encode_annotated,
    read_annotated,
)
from gigatile.records.tfrecord import write_records

FINITE = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)


@st.composite
def some_instances(draw) -> tuple[Instances, list[np.ndarray]]:
    """Return instances, and their masks in an image of 30 x 40 pixels."""
    count = draw(st.integers(0, 4))
    masks, whole = [], []
    for _ in range(count):
        shape = draw(st.integers(1, 9)), draw(st.integers(1, 9))
        pixels = draw(arrays.arrays(np.uint8, shape, elements=st.sampled_from([0, 0, 1, 7])))
        pixels[draw(st.integers(0, shape[0] - 1)), draw(st.integers(0, shape[1] - 1))] = 1
        corner = draw(st.integers(0, 21)), draw(st.integers(0, 31))
        masks.append((pixels, corner))
        image = np.zeros((30, 40), np.uint8)
        image[corner[0] : corner[0] + shape[0], corner[1] : corner[1] + shape[1]] = pixels != 0
        whole.append(image)
    boxes = draw(st.none() | arrays.arrays(np.float32, (count, 4), elements=FINITE))
    crowd = draw(st.none() | st.lists(st.booleans(), min_size=count, max_size=count))
    classes = draw(st.lists(st.integers(1, 1000), min_size=count, max_size=count))
    if not count:
        return empty_instances(), []
    return stack_instances(masks, classes, boxes, crowd), whole


@st.composite
def annotated_images(draw):
    instances, whole = draw(some_instances())
    image = AnnotatedImage(
        image=draw(st.binary(min_size=1, max_size=50)),
        image_id=draw(st.text(max_size=20)),
        height=draw(st.integers(30, 10**6)),
        width=draw(st.integers(40, 10**6)),
        mpp=draw(st.none() | st.floats(0, 16, width=32)),
        instances=draw(st.sampled_from([None, instances])),
    )
    return image, whole


def assert_same(ours: AnnotatedImage, expected: AnnotatedImage) -> None:
    for name, value in vars(expected).items():
        if name != "instances":
            assert getattr(ours, name) == value and type(getattr(ours, name)) is type(value)
    assert (ours.instances is None) == (expected.instances is None)
    if expected.instances is not None:
        for name, value in vars(expected.instances).items():
            array = getattr(ours.instances, name)
            if name == "masks":
                assert list(array) == list(value)
            else:
                assert array.dtype == value.dtype
                np.testing.assert_array_equal(array, value)


@given(annotated_images())
def test_round_trip(case):
    image, whole = case
    data = encode_annotated(image)
    assert data == encode_annotated(image)
    ours = decode_annotated(data)
    assert_same(ours, image)
    if ours.instances is None:
        return
    assert len(ours.instances) == len(whole)
    for index, mask in enumerate(whole):
        top, left, bottom, right = ours.instances.crops[index]
        np.testing.assert_array_equal(ours.instances.mask(index), mask[top:bottom, left:right])
        assert mask.sum() == ours.instances.mask(index).sum()
        # The smallest box: a pixel of the mask at each side.
        pixels = ours.instances.mask(index)
        assert all(side.any() for side in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]))
        code = ours.instances.image_rle(index, 30, 40)
        assert code["size"] == [30, 40] and code["counts"] == encode_mask(mask).decode()


def test_boxes_are_those_of_the_masks_by_default():
    pixels = np.zeros((6, 9), bool)
    pixels[2:4, 3:8] = True
    instances = stack_instances([(pixels, (10, 20))], [3])
    assert instances.boxes.tolist() == instances.crops.tolist() == [[12, 23, 14, 28]]
    assert instances.classes.tolist() == [3] and instances.crowd.tolist() == [False]
    assert instances.mask(0).tolist() == np.ones((2, 5)).tolist()


@settings(max_examples=50)
@given(annotated_images())
def test_tensorflow_can_parse_the_record(case):
    """With its own parser, without this library."""
    image, _ = case
    kinds = {
        "image": tf.string,
        "image_id": tf.string,
        "height": tf.int64,
        "width": tf.int64,
        "annotated": tf.int64,
        "mpp": tf.float32,
        "boxes": tf.float32,
        "classes": tf.int64,
        "crowd": tf.int64,
        "crops": tf.int64,
        "masks": tf.string,
    }
    features = {name: tf.io.VarLenFeature(kind) for name, kind in kinds.items()}
    parsed = tf.io.parse_single_example(encode_annotated(image), features)
    values = {name: part.values.numpy() for name, part in parsed.items()}
    assert values["image"].tolist() == [image.image]
    assert values["image_id"][0].decode() == image.image_id
    assert (values["height"].item(), values["width"].item()) == (image.height, image.width)
    assert values["annotated"].item() == (image.instances is not None)
    assert values["mpp"].tolist() == ([] if image.mpp is None else [image.mpp])
    instances = image.instances or empty_instances()
    np.testing.assert_array_equal(values["boxes"].reshape(-1, 4), instances.boxes)
    np.testing.assert_array_equal(values["crops"].reshape(-1, 4), instances.crops)
    np.testing.assert_array_equal(values["classes"], instances.classes)
    np.testing.assert_array_equal(values["crowd"], instances.crowd)
    assert values["masks"].tolist() == list(instances.masks)


def test_lists_of_an_example():
    data = encode_example(
        {
            "text": ["a", "é"],
            "bytes": [b"\x00", b""],
            "ints": np.array([3, -(2**62)]),
            "floats": np.array([0.5, -1.25], np.float32),
            "none": [],
        }
    )
    assert decode_lists(data) == {
        "text": [b"a", "é".encode()],
        "bytes": [b"\x00", b""],
        "ints": [3, -(2**62)],
        "floats": [0.5, -1.25],
    }
    assert decode_example(data)["ints"] == 3
    # A feature of another program may have no kind.
    none = tf.train.Example(features=tf.train.Features(feature={"none": tf.train.Feature()}))
    assert decode_lists(none.SerializeToString()) == {"none": []}


def good_record() -> bytes:
    mask = np.array([[1, 1, 0], [0, 1, 1]], bool)
    instances = stack_instances([(mask, (3, 4)), (mask, (0, 0))], [1, 2])
    return encode_annotated(AnnotatedImage(b"\xff\xd8\xff no", "A", 30, 40, 0.5, instances))


def check(data: bytes) -> None:
    """Decode a record and use all of it; only a `UserError` may be raised."""
    try:
        image = decode_annotated(data)
        assert isinstance(image.image, bytes) and isinstance(image.image_id, str)
        assert type(image.height) is type(image.width) is int
        assert image.mpp is None or isinstance(image.mpp, float)
        if image.instances is not None:
            kinds = [np.dtype(kind) for kind in (np.float32, np.int32, bool, np.int32)]
            names = ("boxes", "classes", "crowd", "crops")
            assert [getattr(image.instances, name).dtype for name in names] == kinds
            assert all(isinstance(mask, bytes) for mask in image.instances.masks)
        image.pixels()
    except UserError as error:
        assert "image" in str(error)


@given(st.binary(max_size=80))
def test_random_bytes_are_refused(data):
    check(data)


@settings(max_examples=500)
@given(st.data())
def test_record_with_changed_bytes_is_decoded_or_refused(data):
    record = bytearray(good_record())
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(0, len(record) - 1))
        kind = data.draw(st.sampled_from(["change", "delete", "insert", "cut"]))
        if kind == "change":
            record[position] = data.draw(st.integers(0, 255))
        elif kind == "delete" and len(record) > 1:
            del record[position]
        elif kind == "insert":
            record.insert(position, data.draw(st.integers(0, 255)))
        elif len(record) > 1:
            del record[max(1, position) :]
    check(bytes(record))


NUMBERS = st.integers(-(2**63), 2**63 - 1)
OTHER_VALUES = st.one_of(
    st.lists(st.binary(max_size=4), max_size=9),
    st.lists(NUMBERS | st.integers(0, 9), max_size=9),
    st.lists(st.floats(width=32), max_size=9),
)
FEATURES = sorted(decode_lists(good_record()))


@settings(max_examples=600)
@example("classes", [2**40, 1])
@example("height", [float("inf")])
@example("height", [float("nan")])
@example("image", [3])
@example("image_id", [3])
@example("image_id", [b"\xff"])
@example("mpp", [b"1"])
@example("masks", [1, 2])
@example("crowd", [b"", b"x"])
@example("annotated", [])
@given(st.sampled_from(FEATURES), OTHER_VALUES)
def test_record_with_other_features_is_decoded_or_refused(name, values):
    check(encode_example({**decode_lists(good_record()), name: values}))


@pytest.mark.parametrize("name", ["image", "image_id", "height", "width", "annotated", "masks"])
def test_record_without_a_feature_is_refused(name):
    features = decode_lists(good_record())
    del features[name]
    with pytest.raises(UserError, match="the record is not an annotated image"):
        decode_annotated(encode_example(features))


def test_error_names_the_file_and_the_record(tmp_path):
    path = tmp_path / "A.tfrecord"
    write_records(path, [good_record(), encode_example({"image": b"x"})])
    with pytest.raises(UserError, match=r"A\.tfrecord: record 2: the record is not an annotated"):
        list(read_annotated(path))


def test_masks_of_one_column_and_row():
    for shape in ((1, 1), (1, 7), (7, 1), (200, 3)):
        pixels = np.random.default_rng(1).integers(0, 2, shape).astype(np.uint8)
        ours = decode_mask(encode_mask(pixels), np.array([5, 6, 5 + shape[0], 6 + shape[1]]))
        assert ours.dtype == np.uint8 and ours.flags.c_contiguous
        np.testing.assert_array_equal(ours, pixels)


def test_damaged_masks_are_refused_and_never_decoded():
    """pycocotools would write outside its memory; a record may be made by somebody else."""
    random = np.random.default_rng(2)
    mask = np.zeros((9, 7), np.uint8)
    mask[2:7, 1:6] = random.integers(0, 2, (5, 5))
    mask[2, 1] = 1
    instances = stack_instances([(mask, (3, 4))], [1])
    image = AnnotatedImage(b"x", "I", 20, 20, None, instances)
    (code,) = instances.masks
    refused = 0
    for _ in range(500):
        letters = bytearray(code)
        for position in random.integers(0, len(letters), random.integers(1, 4)):
            letters[position] = random.integers(0, 256)
        broken = dataclasses.replace(instances, masks=[bytes(letters)])
        try:
            decoded = decode_annotated(
                encode_annotated(dataclasses.replace(image, instances=broken))
            )
        except UserError as error:
            refused += 1
            assert "is not an annotated image" in str(error)
        else:
            assert decoded.instances.mask(0).shape == decoded.instances.mask(0).shape
    assert refused > 300
    for crop in ([3, 4, 3, 9], [-1, 4, 8, 9], [3, 4, 8, 21], [8, 4, 3, 9]):
        moved = dataclasses.replace(instances, crops=np.array([crop], np.int32))
        with pytest.raises(UserError, match="a mask leaves the image"):
            decode_annotated(encode_annotated(dataclasses.replace(image, instances=moved)))
