"""Join the shards of several runs under one manifest."""

import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_records import tile

from gigatile.records import RecordError, encode_tile, write_records
from gigatile.records.shard_layout import Source
from gigatile.records.shards import ShardReader
from gigatile.records.tile import encode_jpeg
from gigatile.records.volume import VolumeRecord
from gigatile.records.volume_form import encode_volume
from gigatile.records.writing import write_shards
from gigatile.settings.shards import ShardSettings
from gigatile.tables import write_table
from gigatile.training.sample_order import Epoch, Sampling

COLUMNS = ("slide", "patient", "label", "split")


def make_run(folder: Path, letter: str, labels: tuple[str, str], size: int = 16) -> Path:
    """Write the shards of a run: two slides with 9 and 12 tiles in train, one with 5 in valid."""
    random = np.random.default_rng(ord(letter))
    (folder / "tiles").mkdir(parents=True)
    sources: dict[str, list[Source]] = {"train": [], "valid": []}
    rows = [(f"{letter}9", f"P-{letter}9", labels[0], "test")]
    for number, (split, count) in enumerate((("train", 9), ("train", 12), ("valid", 5))):
        slide, label = f"{letter}{number}", labels[number % 2]
        path = folder / "tiles" / f"{slide}.tfrecord"
        tiles = [
            replace(
                tile(slide, n, label),
                image=encode_jpeg(random.integers(0, 255, (size, size, 3), np.uint8), 90),
            )
            for n in range(count)
        ]
        write_records(path, map(encode_tile, tiles))
        sources[split].append(Source(slide, f"P-{slide}", label, path))
        rows.append((slide, f"P-{slide}", label, split))
    write_shards(sources, ShardSettings(target_mb=0.006), folder / "shards")
    write_table(folder / "splits.tsv", COLUMNS, rows)
    return folder


@pytest.fixture
def runs(tmp_path) -> list[Path]:
    """Two runs with one common label and one different label each."""
    return [
        make_run(tmp_path / "results/a", "A", ("luad", "normal")),
        make_run(tmp_path / "results/b", "B", ("lusc", "normal")),
    ]


@pytest.fixture
def join(command, tmp_path):
    return lambda *parts: command("join_shards.py", *parts, "--out", tmp_path / "both")


def test_times_repeat_the_tiles_of_a_run(runs, join, tmp_path):
    done = join(f"{runs[0]}=2", runs[1])
    assert done.returncode == 0, done.stderr
    reader = ShardReader(tmp_path / "both/manifest.json", "train")
    epoch = Epoch(Sampling(reader.counts, seed=1, window=3), 0, reader.classes_of)
    numbers = epoch.samples(0, len(epoch)).records.tolist()
    assert sorted(numbers) == list(range(2 * 21 + 21))
    shown = Counter((record.slide, record.x) for record in map(reader.__getitem__, numbers))
    expected = {("A", 9): 2, ("A", 12): 2, ("B", 9): 1, ("B", 12): 1}
    assert shown == {
        (f"{run}{0 if count == 9 else 1}", n): times
        for (run, count), times in expected.items()
        for n in range(count)
    }
    valid = ShardReader(tmp_path / "both/manifest.json", "valid")
    assert Counter(record.slide for record in valid) == {"A2": 5, "B2": 5}, "each once, despite =2"
    assert reader.bytes == 2 * train_shards(runs[0]).bytes + train_shards(runs[1]).bytes


def train_shards(run: Path) -> ShardReader:
    return ShardReader(run / "shards/manifest.json", "train")


def test_joined_classes_are_the_union_of_all_runs(runs, join, tmp_path):
    """`normal` has the number 1 in both runs and 2 in the joined manifest; `lusc` has 0 and 1."""
    join(*runs)
    for split in ("train", "valid"):
        reader = ShardReader(tmp_path / "both/manifest.json", split)
        assert reader.classes == ["luad", "lusc", "normal"]
        numbers = np.concatenate([reader.classes_of(n) for n in range(len(reader.counts))])
        assert [reader.classes[number] for number in numbers] == [record.label for record in reader]
        assert len(reader.counts) > 1 and reader.counts.sum() == len(reader)


def test_joined_manifest_has_counts_and_inputs(runs, join, tmp_path):
    done = join(f"{runs[0]}=2", runs[1])
    manifest = json.loads((tmp_path / "both/manifest.json").read_text())
    train = manifest["splits"]["train"]
    assert (train["records"], train["slides"]) == (63, 4)
    assert train["by_label"] == {"luad": 18, "lusc": 9, "normal": 36}
    assert "train: 63 tiles in" in done.stdout and "18 luad, 9 lusc, 36 normal" in done.stdout
    for name, recorded in manifest["inputs"].items():
        data = (tmp_path / "both" / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == recorded
    assert list(manifest["inputs"]) == [
        *("../results/a/shards/manifest.json", "../results/a/splits.tsv"),
        *("../results/b/shards/manifest.json", "../results/b/splits.tsv"),
    ]
    assert list(manifest["times"].values()) == [2, 1]
    assert list((tmp_path / "both").iterdir()) == [tmp_path / "both/manifest.json"]


def test_links_in_paths_are_resolved(runs, command, tmp_path):
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep/er")
    (tmp_path / "b").symlink_to(runs[1])
    done = command("join_shards.py", runs[0], tmp_path / "b", "--out", tmp_path / "link/both")
    assert done.returncode == 0, done.stderr
    assert len(ShardReader(tmp_path / "link/both/manifest.json", "train")) == 42


def test_patients_in_different_splits_are_refused(runs, join, tmp_path):
    rows = [
        ("B0", "P-A0", "lusc", "train"),
        ("B1", "P-A1", "normal", "test"),
        ("B2", "P-A9", "lusc", "train"),
        ("B3", "P-A2", "lusc", "valid"),
    ]
    write_table(runs[1] / "splits.tsv", COLUMNS, rows)
    done = join(*runs)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert lines[0].startswith("error: 2 patient(s) are in different splits")
    assert lines[1:] == [
        f"  - P-A1: train in {runs[0]}, test in {runs[1]}",
        f"  - P-A9: test in {runs[0]}, train in {runs[1]}",
    ]
    assert not (tmp_path / "both").exists()


def test_tiles_of_different_sizes_are_refused(runs, join, tmp_path):
    large = make_run(tmp_path / "large", "C", ("luad", "normal"), size=24)
    done = join(*runs, large)
    assert done.returncode == 2
    expected = (
        f"differ: tiles of 16×16 in {runs[0]}, tiles of 16×16 in {runs[1]}, tiles of 24×24 in"
    )
    assert expected in done.stderr
    assert not (tmp_path / "both").exists()


def test_shards_that_change_after_joining_are_detected(runs, join, tmp_path):
    join(*runs)
    manifest = tmp_path / "both/manifest.json"
    path = min((runs[1] / "shards").glob("train-*.tfrecord"))
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    with pytest.raises(RecordError, match=rf"results/b/shards/{path.name}: the record at byte"):
        list(ShardReader(manifest, "train"))
    path.unlink()
    done = join(*runs)
    assert done.returncode == 2 and f"{path}, which does not exist" in done.stderr


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (["a", "a=2"], "named twice; write results/a=2 to show its train tiles twice"),
        (["a=0"], "found '0' after =; must be a number of times, 1 or more"),
        (["a", "gone"], "results/gone/splits.tsv: no such file"),
    ],
)
def test_faulty_arguments_are_refused(runs, command, tmp_path, parts, expected):
    parts = [f"results/{part}" for part in parts]
    done = command("join_shards.py", *parts, "--out", "both", cwd=tmp_path)
    assert done.returncode == 2 and expected in done.stderr and "Traceback" not in done.stderr


def test_manifest_of_a_run_is_not_overwritten(runs, command):
    before = (runs[0] / "shards/manifest.json").read_bytes()
    done = command("join_shards.py", *runs, "--out", runs[0] / "shards")
    assert done.returncode == 2 and "choose another folder" in done.stderr
    assert (runs[0] / "shards/manifest.json").read_bytes() == before


# --- Volumes


def make_run_of_volumes(folder: Path, letter: str, channels=("flair", "t1"), spacing=1.0) -> Path:
    """Write the shards of a run: two cases in train and one in valid."""
    (folder / "volumes").mkdir(parents=True)
    sources: dict[str, list[Source]] = {"train": [], "valid": []}
    for number, split in enumerate(("train", "train", "valid")):
        case = f"{letter}{number}"
        image = np.full((9, 8, 7, len(channels)), number + 1, np.float16)
        labels = np.zeros(image.shape[:3], np.uint8)
        path = folder / "volumes" / f"{case}.tfrecord"
        grid = {"spacing": [spacing] * 3}
        write_records(path, [encode_volume(case, image, labels, channels, grid)])
        sources[split].append(Source(case, f"P-{case}", "", path))
    write_shards(sources, ShardSettings(), folder / "shards", unit="case")
    rows = [
        (source.slide, source.patient, split)
        for split, in_split in sources.items()
        for source in in_split
    ]
    write_table(folder / "splits.tsv", ("case", "patient", "split"), rows)
    return folder


def test_volumes_of_several_runs_are_joined(join, tmp_path):
    # The spacing of a prepared volume deviates by up to one voxel over its whole extent.
    runs = [
        make_run_of_volumes(tmp_path / f"results/{name}", name, spacing=spacing)
        for name, spacing in (("X", 4.02), ("Y", 3.98))
    ]
    done = join(f"{runs[0]}=2", runs[1])
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "both/manifest.json").read_text())
    assert manifest["splits"]["train"]["records"] == 6
    assert manifest["splits"]["train"]["cases"] == 4
    assert manifest["classes"] == []
    reader = ShardReader(tmp_path / "both/manifest.json", "train")
    heads = [VolumeRecord(*reader.locate(number)).head.case for number in range(len(reader))]
    assert Counter(heads) == {"X0": 2, "X1": 2, "Y0": 1, "Y1": 1}


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"channels": ("flair", "t2")}, "volumes of flair, t2 at 1×1×1 mm in"),
        ({"spacing": 2.0}, "volumes of flair, t1 at 2×2×2 mm in"),
    ],
)
def test_different_volumes_are_refused(join, tmp_path, other, expected):
    runs = [make_run_of_volumes(tmp_path / "results/X", "X")]
    runs.append(make_run_of_volumes(tmp_path / "results/Y", "Y", **other))
    done = join(*runs)
    assert done.returncode == 2 and "the records differ" in done.stderr and expected in done.stderr


def test_volumes_and_slides_are_not_joined(join, runs, tmp_path):
    done = join(runs[0], make_run_of_volumes(tmp_path / "results/X", "X"))
    assert done.returncode == 2 and "the records differ: tiles of 16×16 in" in done.stderr
