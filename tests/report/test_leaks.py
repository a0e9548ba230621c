"""Leaks in shards and records are found."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from slide_runs import jpeg
from test_index_page import change

from gigatile.files import sha256_of, write_json
from gigatile.records import Tile, encode_tile, read_records, write_records
from gigatile.records.shard_layout import Source
from gigatile.records.shards import INDEX
from gigatile.records.tile import encode_sheet_fields, image_of
from gigatile.records.volume_form import encode_volume
from gigatile.records.writing import write_shards
from gigatile.report.cases.records import VOLUMES
from gigatile.report.inputs import CohortRow
from gigatile.report.shard_contents import Contents, read_contents
from gigatile.report.slides.records import TILES
from gigatile.settings.shards import ShardSettings

SETTINGS = ShardSettings(target_mb=100, seed=2)
OTHER_CONTENT = "has different content in the shards and in its own file"


class Run:
    """Two train slides, a valid and a test slide of four tiles each, of two labels."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rng = np.random.default_rng(7)
        self.rows: dict[str, CohortRow] = {}
        for slide, label, split in (
            ("A", "x", "train"),
            ("B", "y", "train"),
            ("V", "x", "valid"),
            ("T", "x", "test"),
        ):
            images = [jpeg(self.rng.integers(0, 255, (16, 16, 3), np.uint8)) for _ in range(4)]
            self.rows[slide] = CohortRow(
                id=slide,
                patient=f"P-{slide}",
                label=label,
                split=split,
                state="tiled",
                records=4,
                sha256="",
            )
            self.write(slide, images)

    @property
    def manifest(self) -> Path:
        return self.folder / "shards/manifest.json"

    def path(self, slide: str) -> Path:
        return self.folder / f"tiles/{slide}.tfrecord"

    def change(self, slide: str, **values: object) -> None:
        self.rows[slide] = replace(self.rows[slide], **values)

    def write(self, slide: str, images: Sequence[bytes]) -> None:
        """Write the records of a slide, and update its row."""
        tiles = [Tile(image, slide, 16 * k, 0, 16.0, 0.5, 0.9) for k, image in enumerate(images)]
        write_records(self.path(slide), map(encode_tile, tiles))
        self.change(slide, records=len(images), sha256=sha256_of(self.path(slide)))

    def shard(self, **splits: str) -> None:
        """Write the shards of the slides in the table, or of other slides by split."""
        sources = {}
        for split in ("train", "valid"):
            labels = splits.get(split) or "".join(
                n for n, r in self.rows.items() if r.split == split
            )
            sources[split] = [
                Source(n, self.rows[n].patient, self.rows[n].label, self.path(n)) for n in labels
            ]
        write_shards(sources, SETTINGS, self.folder / "shards")

    def contents(self) -> Contents:
        rows = list(self.rows.values())
        return read_contents(self.manifest, self.folder / "tiles", rows, TILES, "slide")

    def images(self, slide: str) -> list[bytes]:
        return [image_of(data) for data in read_records(self.path(slide))]

    def edit_shard(self, edit: Callable[[list[bytes]], list[bytes]], split: str = "train") -> None:
        """Change the records of a shard, and update its index and the manifest."""
        content = json.loads(self.manifest.read_text())
        (shard,) = content["splits"][split]["shards"]
        path, index = (self.manifest.parent / shard[key] for key in ("file", "index"))
        labels = np.load(index)["label"]
        records = edit(list(read_records(path)))
        write_records(path, records)
        entries = np.zeros(len(records), INDEX)
        entries["offset"] = np.cumsum([0, *(len(record) + 16 for record in records[:-1])])
        entries["label"] = np.resize(labels, len(records))
        np.save(index, entries)
        self.sign()

    def sign(self) -> None:
        """Update the checksums in the manifest."""
        content = json.loads(self.manifest.read_text())
        for part in content["splits"].values():
            for shard in part["shards"]:
                path, index = (self.manifest.parent / shard[key] for key in ("file", "index"))
                shard |= {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
                shard |= {"index_sha256": sha256_of(index), "records": len(np.load(index))}
        write_json(self.manifest, content)


@pytest.fixture
def planted(tmp_path: Path) -> Run:
    run = Run(tmp_path)
    run.shard()
    return run


def test_sound_run_has_no_leak(planted: Run) -> None:
    assert planted.contents() == Contents([], [], [], 12, 16)


def test_test_slide_in_place_of_a_train_slide_is_found(planted: Run) -> None:
    planted.shard(train="TB")
    assert planted.contents().faults == [
        "train: A is not in the shards",
        "train: T is in the shards and is a slide of test",
    ]


def test_test_slide_named_as_train_slide_is_found(planted: Run) -> None:
    """The records in the shards are those of T with the name A; the records of the run are A's."""
    own = planted.path("A").read_bytes()
    row = planted.rows["A"]
    planted.write("A", planted.images("T"))
    planted.shard()
    planted.path("A").write_bytes(own)
    planted.rows["A"] = row
    assert planted.contents().faults == [f"train: A {OTHER_CONTENT}"]


def test_copy_with_another_patient_is_found(planted: Run) -> None:
    """Only the tiles are compared, not the bytes of the slide file."""
    planted.write("A", planted.images("T"))
    planted.shard()
    contents = planted.contents()
    assert contents.faults == [] and contents.shared == ["A (train) = T (test), 4 equal"]


def test_one_common_tile_is_a_leak_unless_plain(planted: Run) -> None:
    white = np.full((16, 16, 3), 243, np.uint8)
    half = white.copy()
    half[:, 8:] = 0
    plain = [jpeg(white), jpeg(half)]
    planted.write("A", [*planted.images("A")[:2], *plain])
    planted.write("T", [*planted.images("T")[:2], *plain])
    planted.shard()
    assert planted.contents() == Contents([], [], [], 12, 16)
    planted.write("T", [planted.images("A")[0], *plain])
    assert planted.contents().shared == ["A (train) = T (test), 1 equal"]


def test_equal_tiles_in_one_split_are_not_a_leak(planted: Run) -> None:
    planted.write("B", planted.images("A"))
    planted.shard()
    assert planted.contents() == Contents([], [], [], 12, 16)


def test_duplicated_tile_in_a_shard_is_found(planted: Run) -> None:
    def edit(records: list[bytes]) -> list[bytes]:
        first, second = [k for k, data in enumerate(records) if b"P-B" in data][:2]
        records[second] = records[first]
        return records

    planted.edit_shard(edit)
    assert f"train: B {OTHER_CONTENT}" in planted.contents().faults


def test_changed_tile_in_a_shard_is_found(planted: Run) -> None:
    other = jpeg(np.random.default_rng(1).integers(0, 255, (16, 16, 3), np.uint8))

    def edit(records: list[bytes]) -> list[bytes]:
        tile = Tile(other, "B", 0, 0, 16.0, 0.5, 0.9)
        index = next(k for k, data in enumerate(records) if b"P-B" in data)
        records[index] = encode_tile(tile) + encode_sheet_fields("P-B", "y")
        return records

    planted.edit_shard(edit)
    assert f"train: B {OTHER_CONTENT}" in planted.contents().faults


def test_swapped_labels_in_the_index_are_found(planted: Run) -> None:
    content = json.loads(planted.manifest.read_text())
    (shard,) = content["splits"]["train"]["shards"]
    index = planted.manifest.parent / shard["index"]
    entries = np.load(index)
    entries["label"] = 1 - entries["label"]
    np.save(index, entries)
    planted.sign()
    assert any("the classes x, y do not fit" in fault for fault in planted.contents().faults)


def test_one_changed_label_in_the_index_is_found(planted: Run) -> None:
    """Not the first of its shard, which is checked when the shard is opened."""
    content = json.loads(planted.manifest.read_text())
    (shard,) = content["splits"]["train"]["shards"]
    index = planted.manifest.parent / shard["index"]
    entries = np.load(index)
    entries["label"][-1] = 1 - entries["label"][-1]
    np.save(index, entries)
    planted.sign()
    assert any("has another label in the index" in fault for fault in planted.contents().faults)


@pytest.mark.parametrize("content", [{"patient": "P-Z"}, {"label": "y"}])
def test_table_edited_after_sharding_is_found(planted: Run, content: dict[str, str]) -> None:
    planted.change("A", **content)
    assert "train: A has another patient or label in the shards" in planted.contents().faults


def test_slide_moved_to_another_split_is_found(planted: Run) -> None:
    planted.change("A", split="test")
    assert planted.contents().faults == ["train: A is in the shards and is a slide of test"]


def test_wrong_counts_and_checksums_are_found(planted: Run) -> None:
    planted.change("T", records=5, sha256="0" * 64)
    assert planted.contents().faults == [
        "test: T has other records than the table states",
        "test: T has 5 tiles in the table, but 4 records",
    ]


def test_reversed_classes_in_the_manifest_are_found(planted: Run) -> None:
    change(planted.manifest, classes=["y", "x"])
    assert any("the classes y, x do not fit" in fault for fault in planted.contents().faults)


def test_shards_of_another_run_are_found(planted: Run, tmp_path: Path) -> None:
    other = Run(tmp_path / "other")
    other.rows = {name.lower(): row for name, row in other.rows.items()}
    other.rows = {n: replace(row, id=n) for n, row in other.rows.items()}
    for name in other.rows:
        other.write(name, [jpeg(other.rng.integers(0, 255, (16, 16, 3), np.uint8))])
    other.shard()
    shutil.rmtree(planted.manifest.parent)
    shutil.copytree(other.manifest.parent, planted.manifest.parent)
    faults = planted.contents().faults
    assert "train: a is in the shards and not in the cohort" in faults
    assert "train: A is not in the shards" in faults


def test_shards_replaced_after_training_are_found(planted: Run) -> None:
    content = planted.manifest.read_text()
    change_shard = json.loads(content)["splits"]["train"]["shards"][0]["file"]
    path = planted.manifest.parent / change_shard
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    faults = planted.contents().faults
    assert f"train: {path.name} is not the file that the manifest names" in faults
    assert any("damaged" in fault for fault in faults)


def test_missing_records_and_shards_are_found(planted: Run) -> None:
    planted.path("T").unlink()
    next(planted.manifest.parent.glob("valid-*.tfrecord")).unlink()
    faults = planted.contents().faults
    assert any(fault.startswith("test: T: T.tfrecord: no such record file") for fault in faults)
    assert any(fault.startswith("valid: manifest.json: lists valid-") for fault in faults)


def test_third_split_in_the_shards_is_found(planted: Run) -> None:
    content = json.loads(planted.manifest.read_text())
    content["splits"]["test"] = content["splits"]["valid"]
    write_json(planted.manifest, content)
    assert "test is in the shards" in planted.contents().faults


def test_shard_of_another_run_is_found(planted: Run, tmp_path: Path) -> None:
    """The other run has the same slides, and T in train."""
    other = Run(tmp_path / "other")
    other.change("T", split="train")
    other.shard()
    (more,) = json.loads(other.manifest.read_text())["splits"]["train"]["shards"]
    more |= {key: f"../other/shards/{more[key]}" for key in ("file", "index")}
    joined = json.loads(planted.manifest.read_text())
    joined["splits"]["train"]["shards"].append(more)
    joined["splits"]["train"]["records"] += more["records"]
    write_json(planted.manifest, joined)
    faults = planted.contents().faults
    assert "train: T is in the shards and is a slide of test" in faults
    assert "train: A has 8 records in the shards, but 4 in its own file" in faults


def test_shard_of_another_split_is_found(planted: Run, tmp_path: Path) -> None:
    other = Run(tmp_path / "other")
    other.change("T", split="train")
    other.change("A", split="test")
    other.shard()
    joined = json.loads(planted.manifest.read_text())
    (shard,) = json.loads(other.manifest.read_text())["splits"]["train"]["shards"]
    shard |= {key: f"../other/shards/{shard[key]}" for key in ("file", "index")}
    joined["splits"]["train"]["shards"] = [shard]
    write_json(planted.manifest, joined)
    assert planted.contents().faults == [
        "train: A is not in the shards",
        "train: T is in the shards and is a slide of test",
    ]


# --- Volumes

VOXELS = np.random.default_rng(3).standard_normal((3, 9, 9, 9, 2)).astype(np.float16)
LABELS = np.random.default_rng(4).integers(0, 3, (3, 9, 9, 9)).astype(np.uint8)


class Cases:
    """A train, a valid and a test case: C0, C1, C2."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[CohortRow] = []
        self.write(VOXELS, LABELS)

    def write(self, voxels: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> None:
        """Write the records of the cases, and their rows."""
        self.rows = []
        for number, split in enumerate(("train", "valid", "test")):
            path = self.folder / f"C{number}.tfrecord"
            record = encode_volume(f"C{number}", voxels[number], labels[number], ("a", "b"), {})
            write_records(path, [record])
            self.rows.append(
                CohortRow(
                    id=f"C{number}",
                    patient=f"P{number}",
                    split=split,
                    state="prepared",
                    records=1,
                    sha256=sha256_of(path),
                )
            )

    def shard(self) -> None:
        sources = {
            row.split: [Source(row.id, row.patient, "", self.folder / f"{row.id}.tfrecord")]
            for row in self.rows[:2]
        }
        write_shards(sources, SETTINGS, self.folder / "shards", unit="case")

    def contents(self) -> Contents:
        manifest = self.folder / "shards/manifest.json"
        return read_contents(manifest, self.folder, self.rows, VOLUMES, "case")


@pytest.fixture
def cases(tmp_path: Path) -> Cases:
    cases = Cases(tmp_path)
    cases.shard()
    return cases


def test_sound_cases_have_no_leak(cases: Cases) -> None:
    assert cases.contents() == Contents([], [], [], 2, 6, 3)


@pytest.mark.parametrize("channels", [1, 2])
def test_equal_voxels_in_train_and_test_are_found(cases: Cases, channels: int) -> None:
    """With another segmentation, and with one or two equal channels."""
    voxels = VOXELS.copy()
    voxels[2, ..., :channels] = voxels[0, ..., :channels]
    cases.write(voxels, LABELS)
    cases.shard()
    content = f"C0 (train) = C2 (test), {channels} equal"
    assert cases.contents() == Contents([], [content], [], 2, 6, 3)


def test_missing_channels_are_not_a_leak(cases: Cases) -> None:
    voxels = VOXELS.copy()
    voxels[..., 1] = 0
    cases.write(voxels, LABELS)
    cases.shard()
    assert cases.contents() == Contents([], [], [], 2, 3, 3)


def test_equal_segmentations_in_train_and_test_are_found(cases: Cases) -> None:
    cases.write(VOXELS, LABELS[[2, 1, 2]])
    cases.shard()
    assert cases.contents() == Contents([], [], ["C0 (train) = C2 (test), 1 equal"], 2, 6, 3)


def test_empty_and_tiny_segmentations_are_not_a_leak(cases: Cases) -> None:
    few = np.zeros_like(LABELS)
    few[1:, :7, :3, :3] = 1  # 63 voxels
    cases.write(VOXELS, few)
    cases.shard()
    assert cases.contents() == Contents([], [], [], 2, 6, 0)


def test_swapped_segmentations_are_found(
    cases: Cases,
) -> None:
    cases.write(VOXELS, LABELS[[1, 0, 2]])
    assert cases.contents().faults == [
        f"train: C0 {OTHER_CONTENT}",
        f"valid: C1 {OTHER_CONTENT}",
    ]
