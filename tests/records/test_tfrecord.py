"""Record files that Gigatile and TensorFlow write and read."""

import dataclasses
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigatile.records import (
    RecordError,
    Tile,
    decode_tile,
    encode_tile,
    read_records,
    write_records,
)
from gigatile.records.example import decode_example, encode_example, first_bytes
from gigatile.records.files import DiskFile
from gigatile.records.shard_layout import Source
from gigatile.records.tfrecord import (
    frame,
    open_records,
    read_consecutive,
    read_sized,
    record_offsets,
)
from gigatile.records.tile import encode_jpeg
from gigatile.records.writing import write_shards
from gigatile.settings.shards import ShardSettings

FEATURES = ("image", "slide", "patient", "label", "x", "y", "extent", "mpp", "tissue")
ODD = "Zoë\u2028 患者/1"


def make_tile(number: int = 0, slide: str = "S1", **change) -> Tile:
    pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), np.uint8)
    values = {
        "image": encode_jpeg(pixels, 90),
        "slide": slide,
        "patient": f"P of {slide}",
        "label": "luad",
        "x": 16 * number,
        "y": 2**40,
        "extent": 16.125,
        "mpp": 0.499,
        "tissue": 0.75,
    }
    return Tile(**values | change)


# --- TensorFlow


@pytest.fixture(scope="module")
def tf():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow

    return tensorflow


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> list[Source]:
    folder = tmp_path_factory.mktemp("tiles")
    sources = []
    for slide in ("S1", "S2", "S3"):
        path = folder / f"{slide}.tfrecord"
        write_records(path, [encode_tile(make_tile(n, slide)) for n in range(7)])
        sources.append(Source(slide, f"P of {slide}", "luad", path))
    return sources


def parse(tf, data) -> dict:
    """Parse a record with TensorFlow."""
    kinds = dict.fromkeys(("image", "slide", "patient", "label"), tf.string)
    kinds |= dict.fromkeys(("x", "y"), tf.int64)
    kinds |= dict.fromkeys(("extent", "mpp", "tissue"), tf.float32)
    assert set(kinds) == set(FEATURES)
    schema = {name: tf.io.FixedLenFeature([], kind) for name, kind in kinds.items()}
    return tf.io.parse_single_example(data, schema)


def test_stock_tensorflow_reads_tiles(tf, sources):
    read = [parse(tf, data) for data in tf.data.TFRecordDataset(str(sources[1].records))]
    assert len(read) == 7
    for number, features in enumerate(read):
        tile = make_tile(number, "S2")
        for name in ("image", "slide", "patient", "label"):
            value = getattr(tile, name)
            expected = value.encode() if isinstance(value, str) else value
            assert features[name].numpy() == expected
        assert (int(features["x"]), int(features["y"])) == (16 * number, 2**40)
        for name in ("extent", "mpp", "tissue"):
            assert features[name].numpy() == np.float32(getattr(tile, name))
        assert tf.io.decode_jpeg(features["image"]).shape == (16, 16, 3)


def test_stock_tensorflow_reads_shards(tf, sources, tmp_path):
    """Only records in shards have patient and label."""
    (tmp_path / "tiles").mkdir()
    for number, source in enumerate(sources):
        path = tmp_path / f"tiles/{source.slide}.tfrecord"
        slide = source.slide
        tiles = [make_tile(n, slide, patient="", label="") for n in range(7)]
        write_records(path, map(encode_tile, tiles))
        sources[number] = dataclasses.replace(source, records=path)
    write_shards({"train": sources}, ShardSettings(target_mb=0.004), tmp_path)
    shards = sorted(map(str, tmp_path.glob("train-*.tfrecord")))
    assert len(shards) > 1
    read = [parse(tf, data) for data in tf.data.TFRecordDataset(shards)]
    for features in read:
        slide = features["slide"].numpy().decode()
        assert features["patient"].numpy().decode() == f"P of {slide}"
        assert features["label"].numpy() == b"luad"
    tiles_read = sorted(
        (features["slide"].numpy().decode(), int(features["x"])) for features in read
    )
    assert tiles_read == sorted((s, 16 * n) for s in ("S1", "S2", "S3") for n in range(7))


def test_tile_has_the_bytes_of_tensorflow(tf):
    changes = ({}, {"label": ""}, {"slide": ODD}, {"x": 0, "y": 0, "tissue": 0.1})
    for tile in (make_tile(**change) for change in changes):
        feature = {}
        for name, value in vars(tile).items():
            if value == "":
                continue
            if isinstance(value, float):
                kind = {"float_list": tf.train.FloatList(value=[value])}
            elif isinstance(value, int):
                kind = {"int64_list": tf.train.Int64List(value=[value])}
            else:
                data = value.encode() if isinstance(value, str) else value
                kind = {"bytes_list": tf.train.BytesList(value=[data])}
            feature[name] = tf.train.Feature(**kind)
        expected = tf.train.Example(features=tf.train.Features(feature=feature))
        assert encode_tile(tile) == expected.SerializeToString(deterministic=True)
        assert decode_tile(expected.SerializeToString()) == decode_tile(encode_tile(tile))


def test_file_has_the_bytes_of_tensorflow(tf, tmp_path):
    records = [b"", b"a", encode_tile(make_tile()), bytes(range(256)) * 300]
    with tf.io.TFRecordWriter(str(tmp_path / "tensorflow")) as writer:
        for data in records:
            writer.write(data)
    assert write_records(tmp_path / "gigatile", records) == 4
    assert (tmp_path / "gigatile").read_bytes() == (tmp_path / "tensorflow").read_bytes()
    assert list(read_records(tmp_path / "tensorflow")) == records


def test_damage_is_detected_like_in_tensorflow(tf, tmp_path):
    path = tmp_path / "x.tfrecord"
    data = frame(b"some data")
    for offset in range(len(data)):
        path.write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
        with pytest.raises(tf.errors.DataLossError):
            list(tf.data.TFRecordDataset(str(path)))
        with pytest.raises(RecordError):
            list(read_records(path))


# --- Tiles


def test_tile_round_trip():
    tile = make_tile(slide=ODD, label="")
    back = decode_tile(encode_tile(tile))
    assert back.mpp == np.float32(0.499)
    assert vars(back) | {"mpp": 0.499} == vars(tile)
    assert back.pixels().shape == (16, 16, 3)


def test_unknown_mpp_round_trip():
    data = encode_tile(make_tile(mpp=None))
    assert "mpp" not in decode_example(data)
    assert decode_tile(data).mpp is None


@given(
    st.dictionaries(
        st.text(max_size=10),
        st.one_of(
            st.binary(max_size=50),
            st.integers(-(2**63), 2**63 - 1),
            st.floats(width=32, allow_nan=False),
        ),
        max_size=6,
    )
)
def test_example_round_trip_in_any_order(features):
    data = encode_example(features)
    assert decode_example(data) == features
    assert encode_example(dict(reversed(features.items()))) == data


def test_equal_tiles_have_equal_bytes_in_every_process():
    program = (
        "import hashlib; from gigatile.records import Tile, encode_tile;"
        "print(hashlib.sha256(encode_tile("
        "Tile(b'i', 'S', 1, 2, 3.5, None, .5, 'P', 'l'))).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_single_feature_is_read():
    data = encode_tile(make_tile(slide=ODD))
    assert first_bytes(data, "image") == decode_example(data)["image"]
    assert first_bytes(data, "slide") == ODD.encode()
    for name in ("x", "tissue", "absent"):
        with pytest.raises(ValueError, match=f"without the bytes feature '{name}'"):
            first_bytes(data, name)


@pytest.mark.parametrize("data", [b"\xff\xff", b"not an example", b"\x0a\x7f" + b"x" * 40])
def test_other_data_than_examples_are_refused(data):
    for read in (decode_example, lambda data: first_bytes(data, "image")):
        with pytest.raises(ValueError, match=r"not a tf\.train\.Example"):
            read(data)


# --- Files


@given(st.lists(st.binary(max_size=200), max_size=12))
def test_records_round_trip(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("records") / "x.tfrecord"
    assert write_records(path, records) == len(records)
    assert list(read_records(path)) == records
    offsets = record_offsets(path)
    assert offsets.dtype == np.int64
    assert offsets.tolist() == [sum(16 + len(r) for r in records[:n]) for n in range(len(records))]
    with DiskFile(path) as file:
        for offset, data in reversed(list(zip(offsets.tolist(), records, strict=True))):
            assert read_sized(file, offset, len(frame(data))) == data
        assert os.lseek(file.descriptor, 0, os.SEEK_CUR) == 0


def test_a_file_without_records_is_empty(tmp_path):
    assert write_records(tmp_path / "x.tfrecord", ()) == 0
    assert (tmp_path / "x.tfrecord").read_bytes() == b""
    assert list(read_records(tmp_path / "x.tfrecord")) == []
    assert record_offsets(tmp_path / "x.tfrecord").shape == (0,)


def test_error_while_writing_leaves_no_file(tmp_path):
    def records():
        yield b"one"
        raise OSError("the slide cannot be read further")

    with pytest.raises(OSError, match="cannot be read further"):
        write_records(tmp_path / "x.tfrecord", records())
    assert list(tmp_path.iterdir()) == []


# --- Damage. The second of three records starts at byte 26 and has 30 bytes of data.

RECORDS = (b"0123456789", b"a" * 30, b"last")
LENGTH, LENGTH_CRC, DATA, DATA_CRC = 26, 34, 38, 68


@pytest.fixture
def damaged(tmp_path):
    path = tmp_path / "x.tfrecord"
    write_records(path, RECORDS)

    def change(offset: int | None = None, bit: int = 0, keep: int | None = None):
        data = bytearray(path.read_bytes()[:keep])
        if offset is not None:
            data[offset] ^= 1 << bit
        path.write_bytes(data)
        return path

    return change


def message(path, read) -> str:
    with pytest.raises(RecordError) as caught:
        read(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: the record at byte ")
    assert text.endswith("; delete the file and run again")
    return text.removeprefix(f"{path}: the record at byte ").split(";")[0]


def read_second(path) -> bytes:
    with DiskFile(path) as file:
        return read_sized(file, 26, 46)


@pytest.mark.parametrize("offset", [LENGTH, LENGTH + 7, LENGTH_CRC, LENGTH_CRC + 3])
def test_flipped_bit_in_a_length_is_named(damaged, offset):
    path = damaged(offset, bit=5)
    for read in (lambda p: list(read_records(p)), record_offsets, read_second):
        assert message(path, read) == "26 is damaged: the checksum of its length does not fit"


@pytest.mark.parametrize("offset", [DATA, DATA + 29, DATA_CRC, DATA_CRC + 3])
def test_flipped_bit_in_data_is_named(damaged, offset):
    path = damaged(offset, bit=5)
    for read in (lambda p: list(read_records(p)), read_second):
        assert message(path, read) == "26 is damaged: the checksum of its data does not fit"
    assert record_offsets(path).tolist() == [0, 26, 72]


@pytest.mark.parametrize(
    ("keep", "fault"),
    [
        (27, "26 is damaged: the file ends inside its header"),
        (37, "26 is damaged: the file ends inside its header"),
        (38, "26 is damaged: the file ends inside it"),
        (71, "26 is damaged: the file ends inside it"),
        (91, "72 is damaged: the file ends inside it"),
    ],
)
def test_truncated_file_is_named(damaged, keep, fault):
    path = damaged(keep=keep)
    assert message(path, lambda p: list(read_records(p))) == fault
    assert message(path, record_offsets) == fault
    if fault.startswith("26"):
        assert message(path, read_second) == fault


def test_wrong_size_is_named(tmp_path):
    path = tmp_path / "x.tfrecord"
    write_records(path, RECORDS)
    assert read_second(path) == RECORDS[1]
    with DiskFile(path) as file:
        for size in (45, 47, 66):
            fault = message(path, lambda _, n=size: read_sized(file, 26, n))
            assert fault == f"26 is damaged: its size is not the {size} bytes of the index"


def test_records_before_damage_are_read(damaged):
    reader = read_records(damaged(DATA))
    assert next(reader) == RECORDS[0]
    with pytest.raises(RecordError):
        next(reader)


@settings(max_examples=300)
@given(offset=st.integers(0, 91), bit=st.integers(0, 7))
def test_every_flipped_bit_is_detected(tmp_path_factory, offset, bit):
    path = tmp_path_factory.mktemp("records") / "x.tfrecord"
    data = bytearray(b"".join(map(frame, RECORDS)))
    assert len(data) == 92
    data[offset] ^= 1 << bit
    path.write_bytes(data)
    with pytest.raises(RecordError):
        list(read_records(path))


def test_huge_length_is_refused(tmp_path):
    """It would need all memory, but its checksum, 0, does not fit."""
    path = tmp_path / "x.tfrecord"
    path.write_bytes(struct.pack("<QI", 2**62, 0) + b"data")
    for read in (lambda p: list(read_records(p)), record_offsets):
        assert message(path, read) == "0 is damaged: the checksum of its length does not fit"


def test_missing_file_is_named(tmp_path):
    path = tmp_path / "gone.tfrecord"
    for read in (lambda: list(read_records(path)), lambda: record_offsets(path)):
        with pytest.raises(RecordError, match=r"gone\.tfrecord: no such record file"):
            read()


def test_consecutive_records_are_those_read_one_by_one_and_damage_is_found(tmp_path) -> None:
    random = np.random.default_rng(3)
    path = tmp_path / "r.tfrecord"
    data = [random.bytes(int(size)) for size in random.integers(0, 400, 30)]
    write_records(path, data)
    offsets = [*record_offsets(path).tolist(), path.stat().st_size]
    with open_records(path) as file:
        assert list(read_consecutive(file, offsets[4:12])) == data[4:11]
    whole = path.read_bytes()
    for byte in random.integers(offsets[4], offsets[11], 60).tolist():
        damaged = bytearray(whole)
        damaged[byte] ^= 1 << int(random.integers(8))
        path.write_bytes(damaged)
        with open_records(path) as file, pytest.raises(RecordError, match="is damaged"):
            list(read_consecutive(file, offsets[4:12]))
    path.write_bytes(whole[: offsets[11] - 1])
    with open_records(path) as file, pytest.raises(RecordError, match="ends inside"):
        list(read_consecutive(file, offsets[4:12]))
