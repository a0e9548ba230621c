"""Read boxes of voxels from volume records: content, number of bytes read, damage."""

import functools
import json
import os
import struct
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigatile.errors import UserError
from gigatile.parallel.world import World
from gigatile.records import RecordError, read_records, write_records
from gigatile.records.files import DiskFile
from gigatile.records.shard_layout import Source, lay_out_shards
from gigatile.records.tile import Tile, encode_jpeg, encode_sheet_fields, encode_tile
from gigatile.records.volume import VolumeRecord, case_of
from gigatile.records.volume_form import BLOCK, FOREGROUND, encode_volume
from gigatile.settings.shards import ShardSettings

GRID = {"spacing": [1.0, 1.0, 2.5], "crop": [3, 4, 5], "origin": "Zoë"}
NAMES = ("flair", "t1", "t1gd", "t2", "more")


def make_volume(
    shape: tuple[int, int, int], channels: int, labelled: bool = True
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return voxels that differ from their neighbours, with some zeros."""
    random = np.random.default_rng([*shape, channels])
    image = random.standard_normal((*shape, channels)).astype(np.float16)
    image[random.random(shape) < 0.2] = 0
    return image, random.integers(0, 5, shape, np.uint8) if labelled else None


def encoded(image: np.ndarray, labels: np.ndarray | None, case: str = "C1") -> bytearray:
    return encode_volume(case, image, labels, NAMES[: image.shape[3]], GRID)


def opened(path: Path) -> VolumeRecord:
    file = DiskFile(path)
    return VolumeRecord(file, 0, file.size)


def sliced(array: np.ndarray, start: tuple[int, ...], size: tuple[int, ...]) -> np.ndarray:
    """Return a box by slicing; 0 outside the volume."""
    box = np.zeros((*size, *array.shape[3:]), array.dtype)
    for column in np.ndindex(*size[:2]):
        x, y = column[0] + start[0], column[1] + start[1]
        if 0 <= x < array.shape[0] and 0 <= y < array.shape[1]:
            for z in range(size[2]):
                if 0 <= z + start[2] < array.shape[2]:
                    box[(*column, z)] = array[x, y, z + start[2]]
    return box


@pytest.fixture(scope="module")
def make_record(tmp_path_factory):
    """Write a record of a shape once, and open it."""
    folder = tmp_path_factory.mktemp("volumes")

    @functools.cache
    def make(shape, channels, labelled):
        image, labels = make_volume(shape, channels, labelled)
        path = folder / f"{len(list(folder.iterdir()))}.tfrecord"
        write_records(path, [encoded(image, labels)])
        return image, labels, opened(path)

    return make


@pytest.fixture
def large(tmp_path) -> tuple[np.ndarray, np.ndarray, Path]:
    image, labels = make_volume((70, 50, 90), 4)
    path = tmp_path / "large.tfrecord"
    write_records(path, [encoded(image, labels)])
    return image, labels, path


# --- Reading


@given(
    shape=st.sampled_from([(1, 1, 1), (16, 16, 16), (15, 33, 17), (40, 7, 50), (33, 48, 64)]),
    channels=st.integers(1, 5),
    labelled=st.booleans(),
    box=st.tuples(*[st.tuples(st.integers(-20, 70), st.integers(1, 60)) for _ in range(3)]),
)
@settings(max_examples=150)
def test_box_equals_a_slice(make_record, shape, channels, labelled, box):
    image, labels, record = make_record(shape, channels, labelled)
    start, size = zip(*box, strict=True)
    read_image, read_labels = record.read(start, size)
    assert (read_image.dtype, read_labels.dtype) == (np.float16, np.uint8)
    np.testing.assert_array_equal(read_image, sliced(image, start, size))
    expected = sliced(labels, start, size) if labelled else np.zeros(size, np.uint8)
    np.testing.assert_array_equal(read_labels, expected)


def test_volume_round_trip(large):
    image, labels, path = large
    record = opened(path)
    read_image, read_labels = record.read((0, 0, 0), image.shape[:3])
    np.testing.assert_array_equal(read_image, image)
    np.testing.assert_array_equal(read_labels, labels)
    head = record.head
    assert (head.case, head.channels, head.shape) == ("C1", NAMES[:4], (70, 50, 90))
    assert (head.labelled, head.grid) == (True, GRID)
    assert head.inside == np.count_nonzero((image != 0).any(axis=-1))
    values = [image[..., channel][image[..., channel] != 0] for channel in range(4)]
    np.testing.assert_array_equal(head.ranges, [[v.min(), v.max()] for v in values])


def test_existing_arrays_of_any_strides_are_filled(large):
    image, labels, path = large
    record = opened(path)
    batch = np.full((2, 30, 40, 50, 4), 7, np.float16)
    label_batch = np.full((2, 30, 40, 50), 7, np.uint8)
    record.read_into((-3, 5, 21), batch[1, ::-1, ::-1], label_batch[1, ::-1, ::-1])
    expected = sliced(image, (-3, 5, 21), (30, 40, 50))
    np.testing.assert_array_equal(batch[1], expected[::-1, ::-1])
    expected = sliced(labels, (-3, 5, 21), (30, 40, 50))
    np.testing.assert_array_equal(label_batch[1], expected[::-1, ::-1])
    assert (batch[0] == 7).all() and (label_batch[0] == 7).all()
    record.read_into((0, 0, 0), batch[0], None)
    np.testing.assert_array_equal(batch[0], image[:30, :40, :50])


@pytest.mark.parametrize("wrong", ["kind", "channels", "labels", "columns"])
def test_arrays_of_another_shape_are_refused(large, wrong):
    record = opened(large[2])
    image = np.zeros((8, 8, 8, 4), np.float32 if wrong == "kind" else np.float16)
    labels = np.zeros((8, 8, 9 if wrong == "labels" else 8), np.uint8)
    image = image[..., :3] if wrong == "channels" else image
    image = image[:, :, ::-1] if wrong == "columns" else image
    with pytest.raises(ValueError, match="must be"):
        record.read_into((0, 0, 0), image, labels)


def test_threads_are_independent(large):
    image, labels, path = large
    record = opened(path)
    starts = np.random.default_rng(0).integers(-8, 40, (200, 3)).tolist()

    def right(start):
        read_image, read_labels = record.read(start, (30, 31, 32))
        return np.array_equal(read_image, sliced(image, start, (30, 31, 32))) and np.array_equal(
            read_labels, sliced(labels, start, (30, 31, 32))
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(right, starts))


class CountedReads:
    """Counts system calls and forwards them."""

    def __init__(self, monkeypatch) -> None:
        self.calls, self.bytes = 0, 0
        preadv = os.preadv

        def counted(descriptor, buffers, offset):
            count = preadv(descriptor, buffers, offset)
            self.calls, self.bytes = self.calls + 1, self.bytes + count
            return count

        monkeypatch.setattr(os, "preadv", counted)


@pytest.mark.parametrize("start", [(0, 0, 0), (16, 16, 16), (5, 9, 13), (38, 18, 58)])
def test_only_the_blocks_of_a_box_are_read(large, monkeypatch, start):
    record = opened(large[2])
    counted = CountedReads(monkeypatch)
    record.read(start, (32, 32, 32))
    sides = [(a + 32 - 1) // BLOCK - a // BLOCK + 1 for a in start]
    assert counted.bytes == np.prod(sides) * BLOCK**3 * (2 * 4 + 1)
    assert counted.calls == sides[0] * sides[1], "blocks above each other are one read"


def test_empty_blocks_are_not_read(tmp_path, monkeypatch):
    image, labels = np.zeros((48, 32, 96, 2), np.float16), np.zeros((48, 32, 96), np.uint8)
    image[5, 5, 40, 1], labels[0, 0, 70] = 3, 1  # blocks 2 and 4 of the first column
    image[20, 20, 0, 0] = -1
    path = tmp_path / "v"
    write_records(path, [encoded(image, labels)])
    record = opened(path)
    assert np.argwhere(~record.head.empty).tolist() == [[0, 0, 2], [0, 0, 4], [1, 1, 0]]
    full = tmp_path / "full"
    write_records(full, [encoded(np.full_like(image, 9), labels + np.uint8(9))])
    opened(full).read((0, 0, 0), (48, 32, 96))  # so that the thread's buffer is not 0
    counted = CountedReads(monkeypatch)
    read_image, read_labels = record.read((0, 0, 0), (48, 32, 96))
    np.testing.assert_array_equal(read_image, image)
    np.testing.assert_array_equal(read_labels, labels)
    assert (counted.calls, counted.bytes) == (2, 4 * BLOCK**3 * 5)
    record.read((90, 0, 0), (16, 16, 16))
    record.read((32, 0, 0), (16, 32, 96))
    assert counted.calls == 2


def test_head_is_read_at_once(large, monkeypatch):
    requested = preads(monkeypatch)
    opened(large[2])
    assert len(requested) == 1
    assert requested[0] <= 2**17 < large[2].stat().st_size / 10


def test_head_with_many_labels_is_read(tmp_path):
    image, _ = make_volume((64, 64, 64), 1)
    labels = np.random.default_rng(2).integers(0, 20, image.shape[:3], np.uint8)
    write_records(tmp_path / "v", [encoded(image, labels)])
    record = opened(tmp_path / "v")
    assert len(record.head.foreground) == 19 * FOREGROUND
    np.testing.assert_array_equal(record.read((1, 2, 3), (20, 20, 20))[0], image[1:21, 2:22, 3:23])


def preads(monkeypatch) -> list[int]:
    """Return a list that receives the size of each following pread."""
    requested: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda d, n, o: (requested.append(n), pread(d, n, o))[1])
    return requested


# --- Writing


def test_equal_input_gives_equal_bytes():
    image, labels = make_volume((20, 21, 22), 2)
    assert encoded(image, labels) == encoded(np.asfortranarray(image), labels.copy())


def test_negative_zero_is_written_as_zero():
    image, labels = np.zeros((20, 20, 20, 2), np.float16), np.zeros((20, 20, 20), np.uint8)
    image[5, 5, 5, 1] = 1
    minus = np.where(image == 0, np.float16(-0.0), image)
    assert minus.tobytes() != image.tobytes()
    assert encoded(minus, labels) == encoded(image, labels)


def test_stock_tensorflow_reads_a_volume(large):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    image, labels, path = large
    names = ("case", "head", "crcs", "empty", "foreground", "check", "voxels", "patient", "label")
    with path.open("ab") as handle:  # followed by a copy as in a shard
        write_records(
            path.with_name("shard"), [next(read_records(path)) + encode_sheet_fields("P", "")]
        )
        handle.write(path.with_name("shard").read_bytes())
    for number, data in enumerate(tf.data.TFRecordDataset(str(path))):
        features = tf.io.parse_single_example(
            data, {name: tf.io.FixedLenFeature([], tf.string, b"-") for name in names}
        )
        assert (features["case"], features["patient"]) == (b"C1", b"P" if number else b"-")
        head = json.loads(features["head"].numpy())
        assert head["shape"] == [70, 50, 90]
        blocks = tf.reshape(tf.io.decode_raw(features["voxels"], tf.uint8), (5, 4, 6, -1)).numpy()
        crcs = np.frombuffer(features["crcs"].numpy(), "<u4").reshape(5, 4, 6)
        assert google_crc32c.value(blocks[1, 2, 3].tobytes()) == crcs[1, 2, 3]
        halves, label_bytes = np.split(blocks[1, 2, 3], [BLOCK**3 * 8])
        box = np.s_[16:32, 32:48, 48:64]
        expected = np.zeros((16, 16, 16, 4), np.float16)
        expected[:, : image[box].shape[1]] = image[box]
        np.testing.assert_array_equal(halves.view("<f2").reshape(16, 16, 16, 4), expected)
        np.testing.assert_array_equal(
            label_bytes.reshape(16, 16, 16), sliced(labels, (16, 32, 48), (16,) * 3)
        )
        # The padding of the last block is 0: 6, 2 and 10 of its 16 voxels are in the volume.
        halves, label_bytes = np.split(blocks[4, 3, 5], [BLOCK**3 * 8])
        for cube in (halves.view("<f2").reshape(16, 16, 16, 4), label_bytes.reshape(16, 16, 16)):
            assert cube[:6, :2, :10].any()
            assert not cube[6:].any() and not cube[:, 2:].any() and not cube[:, :, 10:].any()
    assert number == 1


def test_record_in_a_shard_is_read(large):
    """The volume follows another record, and has the fields that shards append."""
    image, _, path = large
    shard = path.with_name("shard.tfrecord")
    other = encode_tile(Tile(b"x", "S", 0, 0, 1.0, None, 1.0))
    write_records(shard, [other, next(read_records(path)) + encode_sheet_fields("P of C1", "")])
    offset = 16 + len(other)
    size = shard.stat().st_size - offset
    with DiskFile(shard) as file:
        record = VolumeRecord(file, offset, size)
        np.testing.assert_array_equal(
            record.read((3, 4, 5), (40, 40, 40))[0], image[3:43, 4:44, 5:45]
        )
        with pytest.raises(RecordError, match=f"byte {offset} .*not the {size - 1} bytes"):
            VolumeRecord(file, offset, size - 1)


def test_foreground_is_a_fixed_sample_of_each_label(make_record):
    _, labels, record = make_record((33, 48, 64), 1, True)
    rows = record.head.foreground
    assert np.unique(rows[:, 0]).tolist() == [1, 2, 3, 4]
    for value in (1, 2, 3, 4):
        positions = rows[rows[:, 0] == value, 1:]
        assert len(positions) == FOREGROUND < np.count_nonzero(labels == value)
        assert len(np.unique(positions, axis=0)) == FOREGROUND
        assert (labels[tuple(positions.T)] == value).all()
        # Sampled uniformly: the mean is the centre.
        np.testing.assert_allclose(positions.mean(axis=0), np.array(labels.shape) / 2 - 0.5, atol=2)


def test_foreground_has_all_voxels_of_rare_labels(tmp_path):
    image, _ = make_volume((20, 20, 20), 1)
    labels = np.zeros((20, 20, 20), np.uint8)
    labels[3, 4, 5], labels[19, 0, 7], labels[0, 0, 0] = 255, 255, 9
    for name, given_labels, expected in (
        ("some", labels, [[9, 0, 0, 0], [255, 3, 4, 5], [255, 19, 0, 7]]),
        ("background", np.zeros_like(labels), []),
        ("unlabelled", None, []),
    ):
        write_records(tmp_path / name, [encoded(image, given_labels)])
        head = opened(tmp_path / name).head
        assert head.foreground.tolist() == expected
        assert head.foreground.shape == (len(expected), 4)
        assert head.labelled == (given_labels is not None)


def test_empty_channel_has_no_range(tmp_path):
    image, labels = make_volume((9, 9, 9), 3)
    image[..., 1] = 0
    write_records(tmp_path / "v", [encoded(image, labels)])
    assert opened(tmp_path / "v").head.ranges[1].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("channels", "float16"),
        ("kind", "float16"),
        ("labels", "uint8"),
        ("nan", "not finite"),
        ("infinity", "not finite"),
        ("long", "1-65535"),
        ("heavy", "the limit of a record is"),
    ],
)
def test_volume_beyond_the_limits_is_refused(wrong, message):
    image, labels = make_volume((8, 8, 8), 2)
    names = NAMES[:3] if wrong == "channels" else NAMES[:2]
    if wrong == "kind":
        image = image.astype(np.float32)
    if wrong in ("nan", "infinity"):
        image[7, 7, 7, 1] = {"nan": np.nan, "infinity": -np.inf}[wrong]
    if wrong == "labels":
        labels = labels[:7]
    if wrong in ("long", "heavy"):  # memory that is not allocated until used
        shape = (65536, 1, 1) if wrong == "long" else (1024, 1024, 1024)
        image, labels = np.broadcast_to(np.float16(0), (*shape, 2)), None
    with pytest.raises(ValueError, match=message):
        encode_volume("C", image, labels, names, {})


def test_encoding_and_writing_copy_no_voxels(tmp_path):
    image, labels = make_volume((64, 64, 64), 4)
    labels[2:] = 0  # sampling labelled voxels also needs memory
    path = tmp_path / "v.tfrecord"
    tracemalloc.start()
    write_records(path, [encoded(image, labels)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * path.stat().st_size


# --- Damage


def damage(path: Path, offset: int, bit: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= bit
    path.write_bytes(content)


def test_every_changed_byte_of_the_head_is_detected(tmp_path):
    image, labels = make_volume((5, 5, 5), 1)
    path = tmp_path / "v.tfrecord"
    write_records(path, [encoded(image, labels)])
    whole = path.read_bytes()
    begin = len(whole) - 4 - BLOCK**3 * 3
    for offset in range(begin):
        damage(path, offset, 1 << offset % 8)
        with pytest.raises(RecordError, match=r"v\.tfrecord: the record at byte 0 is damaged"):
            opened(path)
        path.write_bytes(whole)
    opened(path).read((0, 0, 0), (5, 5, 5))


def blocks_of(path: Path, channels: int, count: int) -> Iterator[slice]:
    size = BLOCK**3 * (2 * channels + 1)
    begin = path.stat().st_size - 4 - count * size
    return (slice(begin + size * n, begin + size * (n + 1)) for n in range(count))


def test_changed_bit_of_a_block_is_detected_on_reading(large):
    _, _, path = large
    whole = path.read_bytes()
    random = np.random.default_rng(1)
    for number, block in enumerate(blocks_of(path, 4, 5 * 4 * 6)):
        x, y, z = np.unravel_index(number, (5, 4, 6))
        damage(path, int(random.integers(block.start, block.stop)), 1 << number % 8)
        record = opened(path)
        with pytest.raises(RecordError, match="byte 0 is damaged: the checksum of a block"):
            record.read((16 * x + 5, 16 * y + 1, 16 * z), (1, 1, 1))
        other = (16 * ((x + 1) % 4), 16 * y, 16 * z)
        record.read(other, (16, 2, 10))  # the neighbour is unchanged
        path.write_bytes(whole)


def test_truncated_volume_file_is_damaged(large):
    _, _, path = large
    record = opened(path)
    os.truncate(path, path.stat().st_size // 2)
    record.read((0, 0, 0), (16, 16, 16))
    with pytest.raises(RecordError, match="the file ends inside it"):
        record.read((48, 0, 0), (16, 16, 16))
    with pytest.raises(RecordError, match=r"not the \d+ bytes of the index"):
        opened(path)
    os.truncate(path, 100)
    with pytest.raises(RecordError, match="damaged"):
        opened(path)


def test_other_schema_or_kind_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("gigatile.records.volume_form.SCHEMA", 99)
    write_records(tmp_path / "v", [encoded(*make_volume((5, 5, 5), 1))])
    monkeypatch.undo()
    with pytest.raises(RecordError, match=r"v: volumes of schema 99, expected 1; delete"):
        opened(tmp_path / "v")
    write_records(tmp_path / "t", [make_tile("S1")])
    with pytest.raises(RecordError, match="damaged"):
        opened(tmp_path / "t")


# --- The case of a record


def make_tile(slide: str) -> bytes:
    return encode_tile(
        Tile(encode_jpeg(np.zeros((8, 8, 3), np.uint8), 90), slide, 0, 0, 8.0, None, 1.0)
    )


def count_records(path: Path, case: str) -> int:
    source = Source(case, "P", "", path)
    folder = path.parent / "plan"
    folder.mkdir(exist_ok=True)
    return int(
        lay_out_shards(World(), "train", [source], ShardSettings(), folder).record_counts.sum()
    )


def test_layout_checks_the_case_of_a_record(large, monkeypatch):
    path = large[2]
    requested = preads(monkeypatch)
    assert count_records(path, "C1") == 1
    assert sum(requested) < 2**18 < path.stat().st_size / 10, "the head alone is read"
    with pytest.raises(UserError, match=r"contains the records of 'C1', expected 'C2'; delete"):
        count_records(path, "C2")
    tiles = path.with_name("tiles.tfrecord")
    write_records(tiles, [make_tile("S1"), make_tile("S1")])
    assert count_records(tiles, "S1") == 2
    with pytest.raises(UserError, match=r"contains the records of 'S1', expected 'C1'; delete"):
        count_records(tiles, "C1")


def test_damaged_head_is_not_another_kind(large):
    path = large[2]
    with DiskFile(path) as file:
        assert case_of(file, 0) == "C1"
        damage(path, 60)
        with pytest.raises(RecordError, match="its head does not fit"):
            case_of(file, 0)


def test_volume_record_has_the_usual_frame(large):
    path = large[2]
    (length,) = struct.unpack("<Q", path.read_bytes()[:8])
    assert length + 16 == path.stat().st_size
    assert len(list(read_records(path))) == 1
