"""Batches hold what the order says, whoever decodes them, and damage is named where it stands."""

import dataclasses
import io
import json
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
from gigatile.tasks.tile_classification.samples import Tiles
from gigatile.training.batches import AHEAD, BatchMemory, batches
from gigatile.training.sample_order import VIEWS, Epoch, Sampling, apply_view

LABELS = ("luad", "lusc", "normal")


def tile(number: int, size: int = 24) -> Tile:
    label = LABELS[number % 3]
    noise = np.random.default_rng(number).integers(0, 256, (size, size, 3), np.uint8)
    return Tile(encode_jpeg(noise, 90), label, number, 0, size, 0.5, 1.0)


def shards(folder: Path, records: list[bytes]) -> Path:
    """Write records, of the labels in turn, as several shards of one split."""
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
    found = ShardReader(manifest, "train")
    assert len(found.counts) > 3
    yield found
    found.close()


def epoch_of(reader: ShardReader, number: int = 0, **options) -> Epoch:
    return Epoch(Sampling(reader.counts, 1, 2, **options), number, reader.classes_of)


def pixels(tile: Tile) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(tile.image)).convert("RGB"))


@pytest.mark.parametrize("threads", [1, 3, 9])
@pytest.mark.parametrize("views", [(), *((view,) for view in range(len(VIEWS)))])
def test_a_batch_is_what_the_order_says_whatever_the_threads(reader, threads, views):
    epoch = epoch_of(reader, views=views)
    found = list(batches(Tiles(reader), epoch, 16, 0, 1, threads))
    assert len(found) == epoch.steps(16) == 7
    for step, batch in enumerate(found):
        wanted = epoch.batch(step, 16, 0, 1)
        assert batch.inputs.shape == (16, 24, 24, 3)
        assert (batch.targets.dtype, batch.total) == (np.int32, wanted.total)
        np.testing.assert_array_equal(batch.weights, wanted.weights)
        places = zip(wanted.samples.records.tolist(), wanted.samples.views.tolist(), strict=True)
        for image, label, (record, view) in zip(batch.inputs, batch.targets, places, strict=True):
            np.testing.assert_array_equal(image, apply_view(pixels(reader[record]), view))
            assert reader.classes[label] == reader[record].label


def test_ranks_have_their_parts_and_a_later_step_is_found(reader):
    epoch = epoch_of(reader)
    whole = list(batches(Tiles(reader), epoch, 20, 0, 1, 2))
    later = range(3, len(whole))
    parts = [list(batches(Tiles(reader), epoch, 20, rank, 4, 2, later)) for rank in range(4)]
    for step, of_ranks in zip(later, zip(*parts, strict=True), strict=True):
        for name in ("inputs", "targets", "weights"):
            joined = np.concatenate([getattr(part, name) for part in of_ranks])
            np.testing.assert_array_equal(joined, getattr(whole[step], name))
    assert list(batches(Tiles(reader), epoch, 20, 0, 1, 2, range(6, 6))) == []


def test_what_is_left_of_a_batch_keeps_its_pixels(reader):
    """A part of one is enough: its memory is not used again while somebody has it."""
    epoch = epoch_of(reader)
    kept = [batch.inputs[2:3, ::2] for batch in batches(Tiles(reader), epoch, 4, 0, 1, 2)]
    whole = [batch.inputs for batch in batches(Tiles(reader), epoch, 4, 0, 1, 2)]
    assert len(kept) > 2 * AHEAD
    for part, images in zip(kept, whole, strict=True):
        np.testing.assert_array_equal(part, images[2:3, ::2])


def test_memory_is_used_again_once_nobody_has_it():
    memory = BatchMemory()
    first = memory.take((2, 3, 5), np.uint8)
    first[:] = 7
    part = first[1:, 0]
    del first
    assert not memory.take((2, 3, 5), np.uint8).any()  # fresh memory is zero
    del part
    assert (memory.take((2, 3, 5), np.uint8) == 7).all()


def test_no_more_than_a_few_batches_are_in_memory(reader):
    places = [
        batch.inputs.ctypes.data
        for batch in batches(Tiles(reader), epoch_of(reader), 4, 0, 1, threads=2)
    ]
    assert len(places) == 26
    assert len(set(places)) <= AHEAD + 2


def test_a_batch_tells_what_its_reading_and_decoding_took(reader):
    begun = time.perf_counter()
    found = list(batches(Tiles(reader), epoch_of(reader), 16, 0, 1, threads=1))
    passed = time.perf_counter() - begun
    stages = [(batch.read_seconds, batch.decode_seconds) for batch in found]
    assert min(map(min, stages)) > 0
    assert sum(map(sum, stages)) <= passed  # one thread does one thing at a time


# --- Damage that the checksums of records do not show


def message(manifest: Path, threads: int = 2) -> str:
    reader = ShardReader(manifest, "train")
    with pytest.raises(RecordError) as caught:
        for _ in batches(Tiles(reader), epoch_of(reader), 8, 0, 1, threads):
            pass
    reader.close()
    return str(caught.value)


def where(manifest: Path, record: bytes) -> str:
    """Return how an error names the place of a record."""
    for shard in json.loads(manifest.read_text())["splits"]["train"]["shards"]:
        path = manifest.parent / shard["file"]
        for offset, found in zip(record_offsets(path), read_records(path), strict=True):
            # Followed by whose it is.
            if found.startswith(record):
                return f"{path}: the record at byte {offset} is damaged: "
    raise AssertionError("no shard holds the record")


@pytest.mark.parametrize("bad", range(0, 60, 13))
def test_a_damaged_image_in_a_sound_record_is_named(tmp_path, bad):
    tiles = [tile(number) for number in range(60)]
    tiles[bad] = dataclasses.replace(tiles[bad], image=tiles[bad].image[:-50])
    records = [encode_tile(one) for one in tiles]
    manifest = shards(tmp_path, records)
    expected = where(manifest, records[bad]) + "its image: Premature end of JPEG file"
    assert message(manifest, threads=1).startswith(expected)
    assert message(manifest, threads=5).startswith(expected)


@pytest.mark.parametrize("size", [23, 25])
def test_a_tile_of_another_size_is_named(tmp_path, size):
    records = [encode_tile(tile(number)) for number in range(30)]
    manifest = shards(tmp_path / "sound", records)
    reader = ShardReader(manifest, "train")
    # Not the first one shown: that one decides which size is the right one.
    last = reader[int(epoch_of(reader).samples(29, 30).records[0])].x
    reader.close()
    records[last] = encode_tile(tile(last, size))
    manifest = shards(tmp_path / "odd", records)
    told = message(manifest)
    assert told.startswith(where(manifest, records[last]) + "its image: ")
    assert ", expected (" in told or "too small" in told


def test_a_first_image_that_is_damaged_is_named(tmp_path):
    records = [
        encode_tile(dataclasses.replace(tile(number), image=b"no JPEG")) for number in range(12)
    ]
    manifest = shards(tmp_path, records)
    assert message(manifest).startswith(str(manifest.parent / "train-"))


def test_a_record_without_an_image_is_named(tmp_path):
    records = [encode_tile(tile(number)) for number in range(12)]
    manifest = shards(tmp_path, records)
    # A shard as nobody writes it: of the size that the manifest says, its checksums sound.
    path = manifest.parent / "train-00000-of-00001.tfrecord"
    found = list(read_records(path))
    found[-1] = found[-1].replace(b"\x05image", b"\x05other")
    write_records(path, found)
    expected = where(manifest, found[-1]) + "tf.train.Example without the bytes feature 'image'"
    assert message(manifest).startswith(expected)
