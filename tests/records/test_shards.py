import dataclasses
import hashlib
import itertools
import json
import random
import re
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_records import bytes_of, joined, names, read_shards, tile, write_sources

from gigatile.errors import UserError
from gigatile.files import sha256_of
from gigatile.records import RecordError, decode_tile, encode_tile, read_records, write_records
from gigatile.records.example import encode_example
from gigatile.records.shard_layout import Source
from gigatile.records.shards import INDEX, ShardReader
from gigatile.records.writing import write_shards
from gigatile.settings.shards import ShardSettings
from gigatile.tables import write_table


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> dict[str, list[Source]]:
    """Ten slides for training, with 0 to 81 tiles, and three for validation."""
    folder = tmp_path_factory.mktemp("tiles")
    return {
        "train": write_sources(folder, [9 * n for n in range(10)], "T"),
        "valid": write_sources(folder, [12, 1, 20], "V"),
    }


# --- Shuffling


def test_every_tile_is_in_exactly_one_shard(sources, tmp_path):
    write_shards(sources, ShardSettings(target_mb=0.002), tmp_path)
    for split, slides in sources.items():
        shards = read_shards(tmp_path, split)
        assert len(shards) > 1
        assert Counter(joined(shards)) == Counter(names(slides))


def test_tiles_keep_their_bytes(sources, tmp_path):
    write_shards(sources, ShardSettings(target_mb=0.002), tmp_path)
    before = {
        data + source.sheet_fields
        for source in sources["valid"]
        for data in read_records(source.records)
    }
    after = {data for shard in tmp_path.glob("valid*.tfrecord") for data in read_records(shard)}
    assert before == after


@settings(max_examples=25)
@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    target=st.floats(0.001, 0.01),
    seed=st.integers(0, 100),
)
def test_no_tile_is_lost_or_duplicated(tmp_path_factory, counts, target, seed):
    folder = tmp_path_factory.mktemp("tiles")
    slides = write_sources(folder, counts)
    write_shards({"train": slides}, ShardSettings(target_mb=target, seed=seed), folder / "shards")
    shards = read_shards(folder / "shards", "train")
    assert sorted(joined(shards)) == sorted(names(slides))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_shards_mix_tiles_of_all_slides(tmp_path):
    slides = write_sources(tmp_path, [100] * 10)
    write_shards({"train": slides}, ShardSettings(target_mb=0.05), tmp_path / "shards")
    shards = read_shards(tmp_path / "shards", "train")
    assert len(shards) == 5
    for shard in shards:
        counts = Counter(slide for slide, _ in shard)
        assert len(counts) == 10
        assert max(counts.values()) < 50  # of 200; 20 are expected
    order = joined(shards)
    same_slide = sum(first[0] == second[0] for first, second in itertools.pairwise(order))
    assert 60 < same_slide < 140  # of 999; 100 are expected
    rising = sum(first < second for first, second in itertools.pairwise(order))
    assert 430 < rising < 570


def test_seed_changes_the_order(sources, tmp_path):
    orders = []
    for seed in (1, 2):
        write_shards(sources, ShardSettings(target_mb=1, seed=seed), tmp_path / str(seed))
        orders.append(read_shards(tmp_path / str(seed), "train"))
    assert orders[0] != orders[1]
    assert sorted(orders[0][0]) == sorted(orders[1][0])


def test_new_slide_only_inserts_its_tiles(sources, tmp_path):
    orders = []
    for left_out in (0, 1):
        slides = {"train": sources["train"][left_out * 4 :]}
        write_shards(slides, ShardSettings(target_mb=1), tmp_path / str(left_out))
        orders.append(joined(read_shards(tmp_path / str(left_out), "train")))
    kept = {source.slide for source in sources["train"][4:]}
    assert [(slide, number) for slide, number in orders[0] if slide in kept] == orders[1]


# --- Reproducible bytes


def test_order_of_slides_does_not_matter(sources, tmp_path):
    settings = ShardSettings(target_mb=0.002)
    write_shards(sources, settings, tmp_path / "one")
    first = bytes_of(tmp_path / "one")
    write_shards(sources, settings, tmp_path / "one")  # over existing shards
    assert bytes_of(tmp_path / "one") == first
    shuffled = {
        split: random.Random(3).sample(slides, len(slides)) for split, slides in sources.items()
    }
    write_shards(shuffled, settings, tmp_path / "two")
    assert bytes_of(tmp_path / "two") == first


# --- Number and size


@pytest.mark.parametrize(
    ("target_mb", "number"), [(100, 1), (0.2, 1), (0.1, 2), (0.05, 4), (0.01, 20), (0.001, 60)]
)
def test_target_size_decides_the_number_of_shards(tmp_path, target_mb, number):
    slides = write_sources(tmp_path, [20, 40], size=3200)
    size = sum(
        source.records.stat().st_size + count * len(source.sheet_fields)
        for source, count in zip(slides, (20, 40), strict=True)
    )
    assert size == pytest.approx(200_000, rel=0.04)
    write_shards({"train": slides}, ShardSettings(target_mb=target_mb), tmp_path / "shards")
    shards = sorted((tmp_path / "shards").glob("*.tfrecord"))
    assert [path.name for path in shards] == [
        f"train-{n:05d}-of-{number:05d}.tfrecord" for n in range(number)
    ]
    assert sum(path.stat().st_size for path in shards) == size


def test_no_tiles_give_one_empty_shard(tmp_path):
    slides = write_sources(tmp_path, [0, 0])
    write_shards({"train": slides}, ShardSettings(), tmp_path / "shards")
    assert read_shards(tmp_path / "shards", "train") == [[]]
    assert len(ShardReader(tmp_path / "shards/manifest.json", "train")) == 0


def test_split_without_slides_is_refused(sources, tmp_path):
    with pytest.raises(UserError, match="no slide with records in valid"):
        write_shards(sources | {"valid": []}, ShardSettings(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_memory_holds_about_one_shard(tmp_path):
    slides = write_sources(tmp_path, [100] * 6, size=20_000)  # 12 MB

    def peak(target_mb: float) -> float:
        tracemalloc.start()
        try:
            out = tmp_path / str(target_mb)
            write_shards({"train": slides}, ShardSettings(target_mb=target_mb), out)
            return tracemalloc.get_traced_memory()[1] / 1e6
        finally:
            tracemalloc.stop()

    assert peak(100) > 12
    assert peak(1) < 3
    assert peak(0.1) < 1.5


# --- The manifest


def test_manifest_lists_counts_and_checksums(sources, tmp_path):
    write_shards(sources, ShardSettings(target_mb=0.002, seed=7), tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert {key: manifest[key] for key in ("schema", "seed", "target_mb", "classes")} == {
        "schema": 4,
        "seed": 7,
        "target_mb": 0.002,
        "classes": ["luad", "lusc"],
    }
    assert list(manifest["splits"]) == ["train", "valid"]
    train, valid = manifest["splits"]["train"], manifest["splits"]["valid"]
    assert (train["records"], train["slides"]) == (405, 10)
    assert train["by_label"] == {"luad": 180, "lusc": 225}
    assert (valid["records"], valid["slides"]) == (33, 3)
    assert valid["by_label"] == {"luad": 32, "lusc": 1}
    for part in (train, valid):
        assert sum(shard["records"] for shard in part["shards"]) == part["records"]
        for shard in part["shards"]:
            data = (tmp_path / shard["file"]).read_bytes()
            assert shard["bytes"] == len(data)
            assert shard["sha256"] == hashlib.sha256(data).hexdigest()
            assert shard["records"] == len(list(read_records(tmp_path / shard["file"])))
            index = (tmp_path / shard["index"]).read_bytes()
            assert shard["index_sha256"] == hashlib.sha256(index).hexdigest()


def test_only_old_shards_are_deleted(sources, tmp_path):
    write_shards(sources, ShardSettings(target_mb=0.002), tmp_path)
    (tmp_path / "notes.txt").write_text("text")
    (tmp_path / "folder").mkdir()
    (tmp_path / ".train-00003-of-00009-abc123.tfrecord").touch()  # of a killed run
    write_shards(sources, ShardSettings(target_mb=100), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "folder",
        "manifest.json",
        "notes.txt",
        "train-00000-of-00001.index.npy",
        "train-00000-of-00001.tfrecord",
        "valid-00000-of-00001.index.npy",
        "valid-00000-of-00001.tfrecord",
    ]


def test_manifest_is_deleted_first_and_written_last(sources, tmp_path):
    """Writing fails at the last slide of valid, when the shards of train are already new."""
    write_shards(sources, ShardSettings(target_mb=0.002), tmp_path / "shards")
    data = bytearray(sources["valid"][2].records.read_bytes())
    data[-10] ^= 1
    (tmp_path / "V2.tfrecord").write_bytes(data)
    broken = [*sources["valid"][:2], Source("V2", "P", "luad", tmp_path / "V2.tfrecord")]
    with pytest.raises(RecordError, match=r"V2\.tfrecord: the record at byte \d+ is damaged"):
        write_shards(sources | {"valid": broken}, ShardSettings(target_mb=100), tmp_path / "shards")
    assert [path.name for path in sorted((tmp_path / "shards").iterdir())] == [
        "train-00000-of-00001.index.npy",
        "train-00000-of-00001.tfrecord",
    ]


def test_all_unusable_record_files_are_listed(sources, tmp_path):
    short = tmp_path / "T1.tfrecord"
    short.write_bytes(sources["train"][1].records.read_bytes()[:-1])
    slides = [
        Source("T1", "P", "lusc", short),
        Source("T2", "P", "luad", tmp_path / "gone.tfrecord"),
        Source("T4", "P", "luad", sources["train"][3].records),
    ]
    with pytest.raises(UserError, match=r"^.*gone\.tfrecord: no such record file$"):
        write_shards({"train": slides}, ShardSettings(), tmp_path / "shards")
    with pytest.raises(UserError) as caught:
        write_shards({"train": [slides[0], slides[2]]}, ShardSettings(), tmp_path / "shards")
    lines = str(caught.value).splitlines()
    assert lines[0] == "train: 2 record files cannot be used"
    assert re.search(r"T1\.tfrecord: .* is damaged: the file ends inside it", lines[1])
    assert re.search(r"T3\.tfrecord: contains the records of 'T3', expected 'T4'; delete", lines[2])
    assert list((tmp_path / "shards").iterdir()) == []


def test_damaged_record_leaves_no_manifest(sources, tmp_path):
    write_shards(sources, ShardSettings(), tmp_path / "shards")
    data = bytearray(sources["train"][3].records.read_bytes())
    data[-10] ^= 1
    (tmp_path / "T3.tfrecord").write_bytes(data)
    bad = Source("T3", "P", "lusc", tmp_path / "T3.tfrecord")
    with pytest.raises(RecordError, match=r"T3\.tfrecord: the record at byte \d+ is damaged"):
        write_shards({"train": [*sources["train"][:3], bad]}, ShardSettings(), tmp_path / "shards")
    assert not (tmp_path / "shards/manifest.json").exists()


def test_patient_and_label_come_from_the_sheet(sources, tmp_path):
    """In shards and indexes, even if an earlier release wrote other values into the tiles."""
    slides = [
        dataclasses.replace(source, patient=f"Zoë {source.slide}", label=label)
        for source, label in zip(sources["train"][1:3], ("new", "old"), strict=True)
    ]
    earlier = tmp_path / "T1.tfrecord"
    write_records(earlier, [encode_tile(tile("T1", n, "gone")) for n in range(7)])
    slides[0] = dataclasses.replace(slides[0], records=earlier)
    write_shards({"train": slides}, ShardSettings(target_mb=0.002), tmp_path)
    reader = ShardReader(tmp_path / "manifest.json", "train")
    assert reader.classes == ["new", "old"]
    expected = {"T1": ("Zoë T1", "new"), "T2": ("Zoë T2", "old")}
    for number, record in enumerate(reader):
        assert (record.patient, record.label) == expected[record.slide]
        assert reader.classes[reader.classes_at(np.array([number]))[0]] == record.label


# --- Reading


@pytest.fixture
def shards(sources, tmp_path) -> Path:
    write_shards(sources, ShardSettings(target_mb=0.002), tmp_path)
    return tmp_path


def test_reader_has_random_access(shards):
    order = joined(read_shards(shards, "train"))
    reader = ShardReader(shards / "manifest.json", "train")
    assert reader.classes == ["luad", "lusc"]
    assert len(reader) == len(order) == 405
    for number in random.Random(1).sample(range(405), 405):
        record = reader[number]
        assert (record.slide, record.x) == order[number]
        assert record == decode_tile(encode_tile(tile(*order[number], record.label)))
        assert reader.image(number) == record.image
    for number in (-1, 405):
        for read in (reader.__getitem__, reader.image):
            with pytest.raises(IndexError):
                read(number)
    assert len(list(reader)) == 405
    reader.close()


@pytest.mark.parametrize("most", [1, 700, 1 << 20])
def test_many_records_are_those_read_one_by_one(shards, monkeypatch, most):
    monkeypatch.setattr("gigatile.records.shards.READ_BYTES", most)
    reader = ShardReader(shards / "manifest.json", "train")
    assert len(reader.counts) > 1
    random.seed(most)
    count = len(reader)
    some = [
        range(count),
        range(count - 1, -1, -1),
        range(0, count, 3),
        range(0),
        [5, 5, 6, 4],
        *(sorted(random.sample(range(count), 40)) for _ in range(5)),
    ]
    for numbers in some:
        assert list(reader.records(numbers)) == [reader.record(number) for number in numbers]
    for numbers in (range(count - 1, count + 1), [-1]):
        with pytest.raises(IndexError):
            list(reader.records(numbers))


def test_index_has_the_classes(shards):
    reader = ShardReader(shards / "manifest.json", "train")
    tile_classes = [reader.classes.index(record.label) for record in reader]
    shard_classes = [reader.classes_of(shard) for shard in range(len(reader.counts))]
    assert np.concatenate(shard_classes).tolist() == tile_classes
    chosen = np.array([404, 0, 7, 7, 250])
    assert reader.classes_at(chosen).tolist() == [tile_classes[number] for number in chosen]
    counts = [np.bincount(classes, minlength=2).tolist() for classes in shard_classes]
    assert reader.counts.tolist() == counts and len(counts) > 1
    assert reader.bytes == sum(path.stat().st_size for path in shards.glob("train-*.tfrecord"))
    reader.close()


def test_other_schema_is_refused(shards):
    path = shards / "manifest.json"
    path.write_text(path.read_text().replace('"schema": 4', '"schema": 1'))
    with pytest.raises(UserError, match="schema 1, expected 4; delete it and run again"):
        ShardReader(path, "train")


@pytest.mark.parametrize(
    ("keys", "value", "reason"),
    [
        ((), [], "damaged, or not written by this release"),
        (("classes",), [1, 2], r"classes\.0: "),
        (("splits",), None, "splits: "),
        (("splits",), {}, "has no shards of train"),
        (("splits", "train", "shards"), [], "has no shards of train"),
        (("splits", "train", "shards", 0, "file"), None, r"splits\.train\.shards\.0\.file: "),
        (("splits", "train", "shards", 0, "bytes"), "9", r"splits\.train\.shards\.0\.bytes: "),
        (("splits", "train", "shards", 0, "classes"), ["z"], r"train-0.*has classes z"),
    ],
)
def test_manifest_with_wrong_fields_is_refused(shards, keys, value, reason):
    path = shards / "manifest.json"
    content = part = json.loads(path.read_text())
    for key in keys[:-1]:
        part = part[key]
    if keys:
        part[keys[-1]] = value
    path.write_text(json.dumps(content if keys else value))
    with pytest.raises(UserError, match=rf"manifest\.json: .*{reason}.*; delete it and run again"):
        ShardReader(path, "train")


def test_threads_share_a_reader(shards):
    order = joined(read_shards(shards, "train"))
    reader = ShardReader(shards / "manifest.json", "train")
    numbers = random.Random(2).choices(range(405), k=8000)
    with ThreadPoolExecutor(8) as pool:
        records = list(pool.map(reader.__getitem__, numbers))
    reader.close()
    assert [(record.slide, record.x) for record in records] == [order[number] for number in numbers]


def test_shard_of_another_size_is_refused(shards):
    path = next(shards.glob("train-*.tfrecord"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"bytes, but \d+ in the manifest; damaged, delete"):
        ShardReader(shards / "manifest.json", "train")
    ShardReader(shards / "manifest.json", "valid").close()


def test_changed_tile_is_refused(shards):
    path = min(shards.glob("train-*.tfrecord"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    reader = ShardReader(shards / "manifest.json", "train")
    damaged = []
    for number in range(len(reader)):
        try:
            _ = reader[number]
        except RecordError as error:
            damaged.append(number)
            assert str(path) in str(error)
    assert len(damaged) == 1
    reader.close()


@pytest.mark.parametrize("change", ["truncated", "swapped", "another array"])
def test_changed_index_is_refused(shards, change):
    path = next(shards.glob("train-*.npy"))
    index = np.load(path)
    if change == "truncated":
        path.write_bytes(path.read_bytes()[:-5])
    else:
        np.save(path, index[::-1] if change == "swapped" else index[:3])
    with pytest.raises(
        UserError, match=r"index\.npy: its SHA-256 is not that of the manifest; damaged"
    ):
        ShardReader(shards / "manifest.json", "train")


def test_wrong_classes_in_the_manifest_are_refused(shards):
    path = shards / "manifest.json"
    manifest = json.loads(path.read_text())
    whole = path.read_text()
    for classes in (["lusc", "luad"], ["luad"], ["luad", "normal"]):
        path.write_text(json.dumps(manifest | {"classes": classes}))
        with pytest.raises(UserError, match=r"manifest\.json: the classes .*do not fit train-0"):
            ShardReader(path, "train")
    path.write_text(whole)
    ShardReader(path, "train").close()


def test_records_of_another_program_are_refused(shards):
    path = shards / "manifest.json"
    manifest = json.loads(path.read_text())
    shard = manifest["splits"]["train"]["shards"][0]
    foreign = encode_example({"image/encoded": b"\xff\xd8", "image/class/label": 3})
    size = write_and_index(shards, shard, foreign)
    shard["bytes"] = size
    path.write_text(json.dumps(manifest))
    with pytest.raises(RecordError, match=r"train-0.*byte 0 is damaged.*without the bytes feature"):
        ShardReader(path, "train")


def write_and_index(folder, shard, data):
    """Replace a shard by a single record, with a matching index."""
    write_records(folder / shard["file"], [data])
    np.save(folder / shard["index"], np.zeros(1, INDEX))
    shard["index_sha256"] = sha256_of(folder / shard["index"])
    return (folder / shard["file"]).stat().st_size


@pytest.mark.parametrize("pattern", ["train-*.tfrecord", "train-*.npy", "manifest.json"])
def test_missing_file_is_named(shards, pattern):
    path = next(shards.glob(pattern))
    path.unlink()
    with pytest.raises(UserError, match=rf"{path.name}.*(does not exist|no such file)"):
        ShardReader(shards / "manifest.json", "train")


# --- The command


def write_by_command(command, folder: Path, rows: list[tuple], **settings):
    columns = ("slide", "patient", "label", "split", "state", "tiles", "reason", "sha256")
    write_table(folder / "tiles.tsv", columns, rows)
    return command(
        *("write_shards.py", "--task", "tile_classification"),
        *("--table", folder / "tiles.tsv", "--records", folder),
        *("--settings", json.dumps(settings), "--out", folder / "shards"),
    )


def test_command_takes_tiled_slides_of_train_and_valid(command, tmp_path):
    slides = write_sources(tmp_path, [5, 6, 7, 8])
    splits = ("train", "valid", "test", "train")
    rows = [
        (s.slide, "P", s.label, split, "tiled", 1, "", "")
        for s, split in zip(slides, splits, strict=True)
    ]
    rows.append(("S9", "P9", "luad", "train", "failed", 0, "the file does not exist", ""))
    done = write_by_command(command, tmp_path, rows, target_mb=0.001)
    assert done.returncode == 0, done.stderr
    shards = {
        split: joined(read_shards(tmp_path / "shards", split)) for split in ("train", "valid")
    }
    assert sorted(shards["train"]) == names([slides[0], slides[3]])
    assert sorted(shards["valid"]) == names([slides[1]])


def test_command_names_the_empty_split(command, tmp_path):
    rows = [("S0", "P", "luad", "train", "tiled", 1, "", "")]
    write_sources(tmp_path, [5])
    refused = write_by_command(command, tmp_path, rows)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: no slide with records in valid")
    assert not (tmp_path / "shards").exists()
