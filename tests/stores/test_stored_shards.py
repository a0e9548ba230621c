"""Shards in a real store have the bytes, batches and weights of those on a disk, also in faults."""

import errno
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import obstore
import pytest
from object_store import Proxy, client
from volume_set import write_record

from gigatile.errors import UserError
from gigatile.records import Tile, encode_tile, write_records
from gigatile.records.manifest import read_manifest
from gigatile.records.shard_layout import Source
from gigatile.records.shards import ShardReader
from gigatile.records.tile import encode_jpeg
from gigatile.records.volume import VolumeRecord
from gigatile.records.writing import write_shards
from gigatile.settings.patches import PatchSettings
from gigatile.settings.shards import ShardSettings
from gigatile.stores import cache, remote_file, uploading
from gigatile.stores.addresses import parse_address
from gigatile.stores.errors import StoreError
from gigatile.tasks.tile_classification.samples import Tiles
from gigatile.tasks.volume_segmentation.samples import Patches
from gigatile.training.batches import batches
from gigatile.training.sample_order import Epoch, Sampling

LABELS = ("luad", "lusc", "normal")
SPLITS = ("train", "valid")


def tile_sources(folder: Path, count: int = 40) -> dict[str, list[Source]]:
    """Write tiles of six slides."""
    folder.mkdir(parents=True, exist_ok=True)
    sources: dict[str, list[Source]] = {}
    random = np.random.default_rng(1)
    for split in SPLITS:
        for label in LABELS:
            slide = f"{split}-{label}"
            noise = [random.integers(0, 256, (24, 24, 3), np.uint8) for _ in range(count)]
            tiles = [
                Tile(encode_jpeg(each, 90), slide, number, 0, 24, 0.5, 1.0)
                for number, each in enumerate(noise)
            ]
            path = folder / f"{slide}.tfrecord"
            write_records(path, map(encode_tile, tiles))
            sources.setdefault(split, []).append(Source(slide, slide, label, path))
    return sources


def written(folder: Path, store: str | None = None) -> Path:
    """Write shards; return their manifest."""
    settings = ShardSettings(target_mb=0.02, store=store)
    write_shards(tile_sources(folder / "records"), settings, folder / "shards")
    return folder / "shards/manifest.json"


@pytest.fixture
def on_disk(tmp_path) -> Path:
    return written(tmp_path / "disk")


@pytest.fixture
def in_store(tmp_path, store) -> Path:
    """Return the manifest of shards in a folder of the store that only this test uses."""
    return written(tmp_path / "store", f"s3://slides/{tmp_path.name}")


def shards_of(manifest: Path):
    return [shard for split in SPLITS for shard in read_manifest(manifest).splits[split].shards]


def key_of(shard) -> str:
    return shard.file.removeprefix("s3://slides/")


def all_batches(manifest: Path, rank: int = 0, ranks: int = 1, cache_gb: float = 1.0) -> list:
    reader = ShardReader(manifest, "train", cache_gb)
    order = Epoch(Sampling(reader.counts, 1, 3), 0, reader.classes_of)
    read = [
        (batch.inputs.copy(), batch.targets.copy())
        for batch in batches(Tiles(reader), order, 12, rank, ranks, 2)
    ]
    reader.close()
    return read


def assert_same_batches(read: list, expected: list) -> None:
    assert len(read) == len(expected) > 5
    for (inputs, targets), (other_inputs, other_targets) in zip(read, expected, strict=True):
        np.testing.assert_array_equal(inputs, other_inputs)
        np.testing.assert_array_equal(targets, other_targets)


def test_shards_have_the_same_bytes(on_disk, in_store, store):
    expected, stored = shards_of(on_disk), shards_of(in_store)
    assert len(stored) == len(expected) > 6
    for shard, same in zip(stored, expected, strict=True):
        data = obstore.get(store.bucket(), key_of(shard)).bytes().to_bytes()
        assert data == (on_disk.parent / same.file).read_bytes()
        assert (shard.sha256, shard.bytes, shard.index) == (same.sha256, same.bytes, same.index)
        indexes = [manifest.parent / shard.index for manifest in (on_disk, in_store)]
        assert indexes[0].read_bytes() == indexes[1].read_bytes()
    assert not list(in_store.parent.glob("*.tfrecord"))


@pytest.mark.parametrize("size", [0, 1, 5 << 20, (5 << 20) + 1, 11 << 20])
def test_what_the_store_has_is_not_written_again(store, monkeypatch, size):
    """Also of files in parts: their ETag is no hash of their content."""
    monkeypatch.setattr(uploading, "PART_BYTES", 5 << 20)
    content = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    path = remote_file.Path(f"s3://slides/once/{size}")
    version = uploading.upload(path, content)
    assert client(store).get_object(Bucket="slides", Key=f"once/{size}")["Body"].read() == bytes(
        content
    )
    puts = []
    monkeypatch.setattr(obstore, "put", lambda *arguments, **options: puts.append(arguments))
    assert uploading.upload(path, content) == version
    assert puts == []
    monkeypatch.undo()


def test_a_damaged_object_is_replaced(in_store, store):
    shard = shards_of(in_store)[0]
    whole = obstore.get(store.bucket(), key_of(shard)).bytes().to_bytes()
    store.put(key_of(shard), bytes([whole[0] ^ 1]) + whole[1:])
    remote_file._KNOWN.clear()
    with pytest.raises(UserError, match="it was changed since it was written"):
        ShardReader(in_store, "train")
    written(in_store.parents[1], shard.file.rpartition("/")[0])
    assert obstore.get(store.bucket(), key_of(shard)).bytes().to_bytes() == whole
    ShardReader(in_store, "train").close()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_batches_are_those_of_shards_on_a_disk(on_disk, in_store, ranks):
    for rank in range(ranks):
        assert_same_batches(all_batches(in_store, rank, ranks), all_batches(on_disk, rank, ranks))


def test_a_small_cache_gives_the_same_batches(on_disk, in_store, monkeypatch):
    """It has less room than a shard; so parts are deleted while others are read."""
    largest = []
    shrink = cache.Cache._shrink

    def counted(self, *arguments):
        shrink(self, *arguments)
        largest.append(self._bytes)

    monkeypatch.setattr(cache.Cache, "_shrink", counted)
    expected = all_batches(on_disk)
    assert_same_batches(all_batches(in_store, cache_gb=20e-6), expected)
    total = sum(shard.bytes for shard in shards_of(in_store) if "train" in shard.file)
    assert max(largest) < total / 2
    assert_same_batches(all_batches(in_store, cache_gb=1e-9), expected)


def test_the_cache_leaves_nothing_in_the_temporary_folder(in_store, tmp_path, monkeypatch):
    """Not even while it is used: a killed process deletes nothing."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    reader = ShardReader(in_store, "train")
    assert len([reader[number] for number in range(len(reader))]) == 120
    assert os.listdir(folder) == []  # noqa: PTH208
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    reader.close()
    assert len(os.listdir("/proc/self/fd")) < descriptors  # noqa: PTH208


def test_each_byte_is_fetched_once(in_store, monkeypatch):
    fetched = []
    read_ranges = remote_file.RemoteFile.read_ranges

    def counted(self, ranges, *more):
        fetched.extend((self.address, *each) for each in ranges)
        return read_ranges(self, ranges, *more)

    monkeypatch.setattr(remote_file.RemoteFile, "read_ranges", counted)
    all_batches(in_store)
    train = [shard for shard in shards_of(in_store) if "train" in shard.file]
    assert sum(end - begin for _, begin, end in fetched) == sum(shard.bytes for shard in train)


def test_the_first_batch_does_not_wait_for_the_others(in_store, monkeypatch):
    """It is there although all requests beyond its own hang."""
    reader = ShardReader(in_store, "train")
    order = Epoch(Sampling(reader.counts, 1, 3), 0, reader.classes_of)
    in_order = order.batch(0, 12, 0, 1).samples.records.tolist()
    spans = {reader.locate(number)[0].path: [] for number in in_order}
    for number in in_order:
        file, begin, size = reader.locate(number)
        spans[file.path].append((begin, begin + size))
    released, held = threading.Event(), threading.Event()
    read_ranges = remote_file.RemoteFile.read_ranges

    def hanging(self, ranges, *more):
        own = spans.get(remote_file.Path(self.address), ())
        if not all(any(a <= x and y <= b for a, b in own) for x, y in ranges):
            held.set()
            assert released.wait(60)
        return read_ranges(self, ranges, *more)

    monkeypatch.setattr(remote_file.RemoteFile, "read_ranges", hanging)
    loading = batches(Tiles(reader), order, 12, 0, 1, 2)
    batch = next(loading)
    assert held.wait(60)
    assert not released.is_set()
    released.set()
    np.testing.assert_array_equal(batch.targets, reader.classes_at(np.array(in_order)))
    loading.close()
    reader.close()


def test_a_killed_gateway_costs_time_only(on_disk, in_store, store):
    expected = all_batches(on_disk)
    reader = ShardReader(in_store, "train")
    order = Epoch(Sampling(reader.counts, 1, 3), 0, reader.classes_of)
    store.kill_gateway()
    again = threading.Timer(3, store.start_gateway)
    again.start()
    begin = time.monotonic()
    read = [
        (batch.inputs.copy(), batch.targets.copy())
        for batch in batches(Tiles(reader), order, 12, 0, 1, 2)
    ]
    again.join()
    reader.close()
    assert_same_batches(read, expected)
    assert time.monotonic() - begin > 2


def test_broken_and_short_answers_are_asked_for_again(on_disk, in_store, store, monkeypatch):
    expected = all_batches(on_disk)
    with Proxy(store.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        remote_file._store.cache_clear()
        remote_file._KNOWN.clear()
        reader = ShardReader(in_store, "train")
        proxy.cut_after = [0, 100, 500, 2000, 10_000] * 4
        # Connections are kept: close those that are open.
        remote_file._store.cache_clear()
        order = Epoch(Sampling(reader.counts, 1, 3), 0, reader.classes_of)
        read = [
            (batch.inputs.copy(), batch.targets.copy())
            for batch in batches(Tiles(reader), order, 12, 0, 1, 2)
        ]
        reader.close()
        assert len(proxy.cut_after) < 15
    assert_same_batches(read, expected)


def test_a_store_that_is_away_is_an_error_after_the_limit(in_store, store, monkeypatch):
    reader = ShardReader(in_store, "train")
    monkeypatch.setattr(remote_file, "RETRY", remote_file.timedelta(seconds=1))
    store.kill_gateway()
    try:
        with pytest.raises(UserError, match=r"s3://slides/.*no answer in 1 seconds of tries"):
            list(map(reader.__getitem__, range(len(reader))))
    finally:
        store.start_gateway()
    assert len(list(map(reader.__getitem__, range(len(reader))))) == 120
    reader.close()


def test_a_change_while_it_is_read_is_an_error(in_store, store):
    reader = ShardReader(in_store, "train")
    reader[0]
    for shard in shards_of(in_store):
        store.put(key_of(shard), b"x" * shard.bytes)
    with pytest.raises(UserError, match=r"s3://slides/.*changed while it was read"):
        list(map(reader.__getitem__, range(len(reader))))
    reader.close()


def test_missing_and_short_objects_are_named(in_store, store):
    shard, other = shards_of(in_store)[:2]
    whole = obstore.get(store.bucket(), key_of(shard)).bytes().to_bytes()
    obstore.delete(store.bucket(), key_of(shard))
    remote_file._KNOWN.clear()
    with pytest.raises(UserError, match=rf"{shard.file}: no such object.*manifest.json lists it"):
        ShardReader(in_store, "train")
    store.put(key_of(shard), whole[:-1])
    remote_file._KNOWN.clear()
    with pytest.raises(UserError, match=rf"{shard.file}: .*changed|{shard.file}: .* bytes"):
        ShardReader(in_store, "train")
    obstore.delete(store.bucket(), key_of(other))


def test_bits_that_changed_on_the_way_are_noticed(in_store, monkeypatch):
    read_ranges = remote_file.RemoteFile.read_ranges

    def flipped(self, ranges, *more):
        return [bytes([data[0] ^ 1]) + data[1:] for data in read_ranges(self, ranges, *more)]

    reader = ShardReader(in_store, "train")
    monkeypatch.setattr(remote_file.RemoteFile, "read_ranges", flipped)
    with pytest.raises(UserError, match=r"record at byte \d+ is damaged: the checksum"):
        list(map(reader.__getitem__, range(len(reader))))
    reader.close()


def test_a_bucket_that_is_not_there_is_named(tmp_path, store):
    with pytest.raises(UserError, match=r"s3://nowhere/a/train-00000.*no such bucket"):
        written(tmp_path, "s3://nowhere/a")
    assert not (tmp_path / "shards/manifest.json").exists()


def test_runs_do_not_replace_each_other(tmp_path, store):
    """They share a folder in the store, and have shards of the same names."""
    folder = f"s3://slides/{tmp_path.name}"
    first = written(tmp_path / "a", folder)
    records = tile_sources(tmp_path / "b/records", count=39)
    settings = ShardSettings(target_mb=0.02, store=folder)
    write_shards(records, settings, tmp_path / "b/shards")
    for manifest, count in ((first, 120), (tmp_path / "b/shards/manifest.json", 117)):
        reader = ShardReader(manifest, "train")
        assert sum(1 for _ in map(reader.__getitem__, range(len(reader)))) == count
        reader.close()


def test_patches_of_volumes_are_those_of_a_disk(tmp_path, store):
    random = np.random.default_rng(3)
    sources = []
    for number in range(3):
        image = random.standard_normal((50, 40, 70, 2)).astype(np.float16)
        image[:, :, :30] = 0  # blocks that are empty are not read
        labels = (random.random(image.shape[:3]) < 0.01).astype(np.uint8)
        path = write_record(
            tmp_path / f"records/C{number}.tfrecord", f"C{number}", image, labels, ("a", "b")
        )
        sources.append(Source(f"C{number}", f"P{number}", "", path))
    settings = PatchSettings(size=(32, 32, 32), rotated=0.5, foreground=0.5)
    read = {}
    for name, folder in (("disk", None), ("store", f"s3://slides/{tmp_path.name}")):
        shards = ShardSettings(target_mb=1, store=folder)
        write_shards({"train": sources}, shards, tmp_path / name, unit="case")
        reader = ShardReader(tmp_path / name / "manifest.json", "train")
        order = Epoch(Sampling(reader.counts, 1, 9), 0, reader.classes_of)
        channels = VolumeRecord(*reader.locate(0)).channels
        source = Patches(reader, settings, channels)
        read[name] = []
        for epoch in range(4):
            order = Epoch(Sampling(reader.counts, 1, 9), epoch, reader.classes_of)
            for batch in batches(source, order, 1, 0, 1, 2):
                read[name].append((batch.inputs.copy(), batch.targets.copy()))
        reader.close()
    assert len(read["disk"]) == 12
    for expected, stored in zip(read["disk"], read["store"], strict=True):
        np.testing.assert_array_equal(stored[0], expected[0])
        np.testing.assert_array_equal(stored[1], expected[1])


def test_reading_ahead_fetches_all_that_patches_read(tmp_path, store, monkeypatch):
    """After `fetch`, reading patches asks for nothing more."""
    image = np.random.default_rng(3).standard_normal((90, 60, 70, 2)).astype(np.float16)
    labels = np.zeros(image.shape[:3], np.uint8)
    path = write_record(tmp_path / "records/C.tfrecord", "C", image, labels, ("a", "b"))
    settings = ShardSettings(target_mb=1, store=f"s3://slides/{tmp_path.name}")
    sources = {"train": [Source("C", "P", "", path)]}
    write_shards(sources, settings, tmp_path / "shards", unit="case")
    reader = ShardReader(tmp_path / "shards/manifest.json", "train")
    for rotated in (0.0, 1.0):
        patches = PatchSettings(size=(24, 16, 32), rotated=rotated)
        source = Patches(reader, patches, VolumeRecord(*reader.locate(0)).channels)
        for epoch in range(12):
            order = Epoch(Sampling(reader.counts, 1, 9), epoch, reader.classes_of)
            samples = order.samples(0, 1)
            source.fetch(samples)
            with monkeypatch.context() as patch:
                patch.setattr(remote_file.RemoteFile, "read_ranges", None)
                source.fill(
                    samples,
                    np.empty((1, 24, 16, 32, 2), np.float16),
                    np.empty((1, 24, 16, 32), np.uint8),
                )
    reader.close()


def test_records_are_fetched_ahead_of_the_model(in_store):
    """The pipeline itself loads six batches at most; there are ten."""
    reader = ShardReader(in_store, "train")
    order = Epoch(Sampling(reader.counts, 1, 3), 0, reader.classes_of)
    loading = batches(Tiles(reader), order, 12, 0, 1, 2)
    next(loading)
    files = {reader.locate(number)[0] for number in range(len(reader))}
    until = time.monotonic() + 60
    while sum(file.copy.fetched if file.copy else 0 for file in files) < reader.bytes:
        assert time.monotonic() < until
        time.sleep(0.05)
    loading.close()
    reader.close()


@pytest.mark.parametrize("limit", [1, 20_000, 100_000, 10_000_000])
def test_threads_read_what_was_written(store, monkeypatch, limit):
    """Random reads and fetches, of which one in twenty fails, in a cache that is too small."""
    numbers = range(6)
    data = {n: np.random.default_rng(n).bytes(50_000 + 777 * n) for n in numbers}
    paths = [parse_address(store.put(f"threads/{n}", data[n])) for n in numbers]
    read_ranges, chance = remote_file.RemoteFile.read_ranges, random.Random(1)

    def failing(self, ranges):
        if chance.random() < 0.05:
            raise StoreError(errno.EIO, "planted", self.address)
        return read_ranges(self, ranges)

    held = cache.Cache(limit)
    files = [held.open(path) for path in paths]
    monkeypatch.setattr(remote_file.RemoteFile, "read_ranges", failing)

    def work(seed: int) -> int:
        draw, failed = random.Random(seed), 0
        for _ in range(60):
            number = draw.choice(numbers)
            begin, size = draw.randrange(len(data[number])), draw.randrange(5000)
            try:
                if draw.random() < 0.3:
                    other = files[draw.choice(numbers)]
                    held.fetch({files[number]: [(begin, begin + size)], other: [(0, 100)]})
                else:
                    expected = data[number][begin : begin + size]
                    assert files[number].read(begin, size) == expected
            except UserError:
                failed += 1
        return failed

    with ThreadPoolExecutor(12) as pool:
        assert sum(pool.map(work, range(12))) > 5
    assert (
        held._bytes == sum(file.copy.fetched for file in files if file.copy) <= max(limit, 60_000)
    )
    held.close()


def test_equal_content_with_another_etag_is_not_replaced(store):
    """Its version would change, and the manifest of the run that wrote it would not fit."""
    content = np.random.default_rng(1).integers(0, 256, 11 << 20, np.uint8)
    obstore.put(store.bucket(), "other/etag", bytes(content), chunk_size=5 << 20)
    path = parse_address("s3://slides/other/etag")
    version = remote_file.open_remote(path).version
    assert uploading.upload(path, content) == version
    content[-1] ^= 1
    assert uploading.upload(path, content) != version


def test_a_missing_file_that_may_not_be_asked_for_is_written(store, monkeypatch):
    """S3 denies access to a missing file, if the account may not list the bucket."""
    answers = [StoreError(errno.EACCES, "access denied", "x")]
    version_now = uploading.version_now

    def denied_first(address):
        if answers:
            raise answers.pop()
        return version_now(address)

    monkeypatch.setattr(uploading, "version_now", denied_first)
    path = parse_address("s3://slides/other/denied")
    assert uploading.upload(path, b"content") == remote_file.open_remote(path).version


def test_threads_that_wait_for_a_failed_request_fail_with_it(store, monkeypatch):
    """Otherwise each of them would try for two minutes, one after the other."""
    path = parse_address(store.put("other/awaited", bytes(1000)))
    held, calls = cache.Cache(1e6), []

    def failing(self, ranges):
        calls.append(ranges)
        time.sleep(0.5)
        raise StoreError(errno.EIO, "no answer", self.address)

    file = held.open(path)
    monkeypatch.setattr(remote_file.RemoteFile, "read_ranges", failing)
    with ThreadPoolExecutor(8) as pool:
        for waiting in [pool.submit(file.read, 0, 1000) for _ in range(8)]:
            with pytest.raises(UserError, match="no answer"):
                waiting.result()
    assert len(calls) == 1
    held.close()
