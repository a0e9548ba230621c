"""Batches follow the sample order for any number of threads, and errors name the damaged record."""

import dataclasses
import errno
import io
import json
import mmap
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gigatile.records import (
    RecordError,
    Tile,
    encode_tile,
    read_records,
    write_records,
)
from gigatile.records.shard_layout import Source
from gigatile.records.shards import ShardReader
from gigatile.records.tfrecord import record_offsets
from gigatile.records.tile import encode_jpeg
from gigatile.records.writing import write_shards
from gigatile.settings.shards import ShardSettings
from gigatile.settings.view_names import VIEWS
from gigatile.tasks.tile_classification.samples import Tiles
from gigatile.training.batches import AHEAD, BatchMemory, batches
from gigatile.training.sample_order import Epoch, Sampling
from gigatile.views import apply_view

LABELS = ("luad", "lusc", "normal")


def tile(number: int, size: int = 24) -> Tile:
    label = LABELS[number % 3]
    noise = np.random.default_rng(number).integers(0, 256, (size, size, 3), np.uint8)
    return Tile(encode_jpeg(noise, 90), label, number, 0, size, 0.5, 1.0)


def shards(folder: Path, records: list[bytes]) -> Path:
    """Write records, with alternating labels, as several shards of one split."""
    sources = []
    for number, label in enumerate(LABELS):
        path = folder / f"{label}.tfrecord"
        write_records(path, records[number::3])
        sources.append(Source(label, label, label, path))
    write_shards({"train": sources}, ShardSettings(target_mb=0.03), folder / "shards")
    return folder / "shards" / "manifest.json"


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    manifest = shards(tmp_path_factory.mktemp("tiles"), [encode_tile(tile(n)) for n in range(101)])
    reader = ShardReader(manifest, "train")
    assert len(reader.counts) > 3
    yield reader
    reader.close()


def epoch_of(reader: ShardReader, number: int = 0, **options) -> Epoch:
    return Epoch(Sampling(reader.counts, 1, 2, **options), number, reader.classes_of)


def pixels(tile: Tile) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(tile.image)).convert("RGB"))


@pytest.mark.parametrize("threads", [1, 3, 9])
@pytest.mark.parametrize("views", [(), *((view,) for view in range(len(VIEWS)))])
def test_batches_follow_the_order_for_any_threads(reader, threads, views):
    epoch = epoch_of(reader, views=views)
    loaded = list(batches(Tiles(reader), epoch, 16, 0, 1, threads))
    assert len(loaded) == epoch.steps(16) == 7
    for step, batch in enumerate(loaded):
        wanted = epoch.batch(step, 16, 0, 1)
        assert batch.inputs.shape == (16, 24, 24, 3)
        assert (batch.targets.dtype, batch.total) == (np.int32, wanted.total)
        np.testing.assert_array_equal(batch.weights, wanted.weights)
        samples = zip(wanted.samples.records.tolist(), wanted.samples.views.tolist(), strict=True)
        for image, label, (record, view) in zip(batch.inputs, batch.targets, samples, strict=True):
            np.testing.assert_array_equal(image, apply_view(pixels(reader[record]), view))
            assert reader.classes[label] == reader[record].label


def test_ranks_load_slices_of_any_steps(reader):
    epoch = epoch_of(reader)
    whole = list(batches(Tiles(reader), epoch, 20, 0, 1, 2))
    later = range(3, len(whole))
    parts = [list(batches(Tiles(reader), epoch, 20, rank, 4, 2, later)) for rank in range(4)]
    for step, slices in zip(later, zip(*parts, strict=True), strict=True):
        for name in ("inputs", "targets", "weights"):
            joined = np.concatenate([getattr(part, name) for part in slices])
            np.testing.assert_array_equal(joined, getattr(whole[step], name))
    assert list(batches(Tiles(reader), epoch, 20, 0, 1, 2, range(6, 6))) == []


def test_view_of_a_batch_keeps_its_pixels(reader):
    """Memory is not reused while a view refers to it."""
    epoch = epoch_of(reader)
    kept = [batch.inputs[2:3, ::2] for batch in batches(Tiles(reader), epoch, 4, 0, 1, 2)]
    whole = [batch.inputs for batch in batches(Tiles(reader), epoch, 4, 0, 1, 2)]
    assert len(kept) > 2 * AHEAD
    for part, images in zip(kept, whole, strict=True):
        np.testing.assert_array_equal(part, images[2:3, ::2])


def test_unreferenced_memory_is_reused():
    memory = BatchMemory()
    first = memory.take((2, 3, 5), np.uint8)
    first[:] = 7
    part = first[1:, 0]
    del first
    assert not memory.take((2, 3, 5), np.uint8).any()  # fresh memory is zero
    del part
    assert (memory.take((2, 3, 5), np.uint8) == 7).all()


def test_number_of_batches_in_memory_is_bounded(reader):
    addresses = [
        batch.inputs.ctypes.data
        for batch in batches(Tiles(reader), epoch_of(reader), 4, 0, 1, threads=2)
    ]
    assert len(addresses) == 26
    assert len(set(addresses)) <= AHEAD + 2


def test_batch_has_times_of_reading_and_decoding(reader):
    start = time.perf_counter()
    loaded = list(batches(Tiles(reader), epoch_of(reader), 16, 0, 1, threads=1))
    elapsed = time.perf_counter() - start
    stages = [(batch.read_seconds, batch.decode_seconds) for batch in loaded]
    assert min(map(min, stages)) > 0
    assert sum(map(sum, stages)) <= elapsed  # one thread does one thing at a time


# --- Damage that checksums of records do not detect


def message(manifest: Path, threads: int = 2) -> str:
    reader = ShardReader(manifest, "train")
    with pytest.raises(RecordError) as caught:
        for _ in batches(Tiles(reader), epoch_of(reader), 8, 0, 1, threads):
            pass
    reader.close()
    return str(caught.value)


def where(manifest: Path, record: bytes) -> str:
    """Return how an error names a record."""
    for shard in json.loads(manifest.read_text())["splits"]["train"]["shards"]:
        path = manifest.parent / shard["file"]
        for offset, content in zip(record_offsets(path), read_records(path), strict=True):
            # The shard appends patient and label.
            if content.startswith(record):
                return f"{path}: the record at byte {offset} is damaged: "
    raise AssertionError("no shard contains the record")


@pytest.mark.parametrize("bad", range(0, 60, 13))
def test_damaged_image_is_named(tmp_path, bad):
    tiles = [tile(number) for number in range(60)]
    tiles[bad] = dataclasses.replace(tiles[bad], image=tiles[bad].image[:-50])
    records = [encode_tile(t) for t in tiles]
    manifest = shards(tmp_path, records)
    expected = where(manifest, records[bad]) + "its image: Premature end of JPEG file"
    assert message(manifest, threads=1).startswith(expected)
    assert message(manifest, threads=5).startswith(expected)


@pytest.mark.parametrize("size", [23, 25])
def test_tile_of_another_size_is_named(tmp_path, size):
    records = [encode_tile(tile(number)) for number in range(30)]
    manifest = shards(tmp_path / "sound", records)
    reader = ShardReader(manifest, "train")
    # Not the first sample: it defines the expected size.
    last = reader[int(epoch_of(reader).samples(29, 30).records[0])].x
    reader.close()
    records[last] = encode_tile(tile(last, size))
    manifest = shards(tmp_path / "odd", records)
    error = message(manifest)
    assert error.startswith(where(manifest, records[last]) + "its image: ")
    assert ", expected (" in error or "too small" in error


def test_damaged_first_image_is_named(tmp_path):
    records = [
        encode_tile(dataclasses.replace(tile(number), image=b"no JPEG")) for number in range(12)
    ]
    manifest = shards(tmp_path, records)
    assert message(manifest).startswith(str(manifest.parent / "train-"))


def test_record_without_an_image_is_named(tmp_path):
    records = [encode_tile(tile(number)) for number in range(12)]
    manifest = shards(tmp_path, records)
    # Size and checksums of the shard are right, but a feature has another name.
    path = manifest.parent / "train-00000-of-00001.tfrecord"
    content = list(read_records(path))
    content[-1] = content[-1].replace(b"\x05image", b"\x05other")
    write_records(path, content)
    expected = where(manifest, content[-1]) + "tf.train.Example without the bytes feature 'image'"
    assert message(manifest).startswith(expected)


def test_memory_is_taken_from_kernels_without_huge_pages(monkeypatch):
    class WithoutHugePages(mmap.mmap):
        def madvise(self, option, *part):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("gigatile.training.batches.mmap.mmap", WithoutHugePages)
    array = BatchMemory().take((3, 5), np.float32)
    array[...] = 1
    assert array.sum() == 15
