"""Planted leaks: each must be found by the check that is meant for it, and a sound run by none."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import jpeg, shard_tiles
from test_case_index import index as case_index
from test_case_index import refresh
from test_index_page import change, index

from gigatile.files import sha256_of, write_json
from gigatile.records import Tile, encode_tile, read_records, write_records
from gigatile.records.plan import Source
from gigatile.records.shards import INDEX
from gigatile.records.tile import encode_whose, image_of
from gigatile.records.volume_form import encode_volume
from gigatile.records.writing import write_shards
from gigatile.report.inputs import CohortSlide
from gigatile.report.records import read_tile, read_volume
from gigatile.report.shard_contents import Contents, read_contents
from gigatile.settings.shards import ShardSettings
from gigatile.tables import read_table

SETTINGS = ShardSettings(target_mb=100, seed=2)


class Run:
    """Two train slides, a valid and a test slide of four tiles each, of two labels."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rng = np.random.default_rng(7)
        self.rows: dict[str, CohortSlide] = {}
        for slide, label, split in (
            ("A", "x", "train"),
            ("B", "y", "train"),
            ("V", "x", "valid"),
            ("T", "x", "test"),
        ):
            images = [jpeg(self.rng.integers(0, 255, (16, 16, 3), np.uint8)) for _ in range(4)]
            self.rows[slide] = CohortSlide(
                slide, f"P-{slide}", label, split, "tiled", 4, "", "", ""
            )
            self.write(slide, images)

    @property
    def manifest(self) -> Path:
        return self.folder / "shards/manifest.json"

    def path(self, slide: str) -> Path:
        return self.folder / f"tiles/{slide}.tfrecord"

    def change(self, slide: str, **values: object) -> None:
        self.rows[slide] = CohortSlide(**{**vars(self.rows[slide]), **values})  # type: ignore[arg-type]

    def write(self, slide: str, images: Sequence[bytes]) -> None:
        """Write a slide's records, and what the table says of them."""
        tiles = [Tile(image, slide, 16 * k, 0, 16.0, 0.5, 0.9) for k, image in enumerate(images)]
        write_records(self.path(slide), map(encode_tile, tiles))
        self.change(slide, tiles=len(images), sha256=sha256_of(self.path(slide)))

    def shard(self, **splits: str) -> None:
        """Write the shards, by default of the table's slides; as rows of a table say otherwise."""
        sources = {}
        for split in ("train", "valid"):
            mine = splits.get(split) or "".join(n for n, r in self.rows.items() if r.split == split)
            sources[split] = [
                Source(n, self.rows[n].patient, self.rows[n].label, self.path(n)) for n in mine
            ]
        write_shards(sources, SETTINGS, self.folder / "shards")

    def contents(self) -> Contents:
        rows = list(self.rows.values())
        return read_contents(self.manifest, self.folder / "tiles", rows, read_tile, "slide")

    def images(self, slide: str) -> list[bytes]:
        return [image_of(data) for data in read_records(self.path(slide))]

    def edit_shard(self, edit: Callable[[list[bytes]], list[bytes]], split: str = "train") -> None:
        """Change the records of a shard, with index and manifest as if it had been written so."""
        told = json.loads(self.manifest.read_text())
        (shard,) = told["splits"][split]["shards"]
        path, index = (self.manifest.parent / shard[key] for key in ("file", "index"))
        labels = np.load(index)["label"]
        records = edit(list(read_records(path)))
        write_records(path, records)
        entries = np.zeros(len(records), INDEX)
        entries["offset"] = np.cumsum([0, *(len(one) + 16 for one in records[:-1])])
        entries["label"] = np.resize(labels, len(records))
        np.save(index, entries)
        self.sign()

    def sign(self) -> None:
        """Have the manifest vouch for whatever lies there."""
        told = json.loads(self.manifest.read_text())
        for part in told["splits"].values():
            for shard in part["shards"]:
                path, index = (self.manifest.parent / shard[key] for key in ("file", "index"))
                shard |= {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
                shard |= {"index_sha256": sha256_of(index), "records": len(np.load(index))}
        write_json(self.manifest, told)


@pytest.fixture
def planted(tmp_path: Path) -> Run:
    run = Run(tmp_path)
    run.shard()
    return run


def test_a_sound_run_has_no_leak(planted: Run) -> None:
    assert planted.contents() == Contents([], [], [], 12, 16)


def test_a_test_slide_in_place_of_a_train_slide_of_the_same_label_and_count(planted: Run) -> None:
    planted.shard(train="TB")
    assert planted.contents().faults == [
        "train: A is not in the shards",
        "train: T is in the shards and is a slide of test",
    ]


def test_a_test_slide_under_the_name_of_a_train_slide(planted: Run) -> None:
    """The records in the shards are of T and say that they are of A; the run's own are A's."""
    own = planted.path("A").read_bytes()
    row = planted.rows["A"]
    planted.write("A", planted.images("T"))
    planted.shard()
    planted.path("A").write_bytes(own)
    planted.rows["A"] = row
    assert planted.contents().faults == ["train: A has other content in the shards than of its own"]


def test_a_copy_of_a_slide_under_another_patient_has_the_same_pixels(planted: Run) -> None:
    """Whatever stands after the slide's end: of the file nothing but its tiles is compared."""
    planted.write("A", planted.images("T"))
    planted.shard()
    found = planted.contents()
    assert found.faults == [] and found.shared == ["A (train) = T (test), 4 equal"]


def test_plain_tiles_are_no_leak_and_one_tile_of_tissue_is(planted: Run) -> None:
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


def test_equal_tiles_of_one_split_are_no_leak(planted: Run) -> None:
    planted.write("B", planted.images("A"))
    planted.shard()
    assert planted.contents() == Contents([], [], [], 12, 16)


def test_a_tile_twice_and_another_one_left_out(planted: Run) -> None:
    def edit(records: list[bytes]) -> list[bytes]:
        first, second = [k for k, data in enumerate(records) if b"P-B" in data][:2]
        records[second] = records[first]
        return records

    planted.edit_shard(edit)
    assert "train: B has other content in the shards than of its own" in planted.contents().faults


def test_one_pixel_of_a_shard_that_its_manifest_vouches_for(planted: Run) -> None:
    other = jpeg(np.random.default_rng(1).integers(0, 255, (16, 16, 3), np.uint8))

    def edit(records: list[bytes]) -> list[bytes]:
        tile = Tile(other, "B", 0, 0, 16.0, 0.5, 0.9)
        place = next(k for k, data in enumerate(records) if b"P-B" in data)
        records[place] = encode_tile(tile) + encode_whose("P-B", "y")
        return records

    planted.edit_shard(edit)
    assert "train: B has other content in the shards than of its own" in planted.contents().faults


def test_labels_that_are_swapped_in_the_index(planted: Run) -> None:
    told = json.loads(planted.manifest.read_text())
    (shard,) = told["splits"]["train"]["shards"]
    index = planted.manifest.parent / shard["index"]
    entries = np.load(index)
    entries["label"] = 1 - entries["label"]
    np.save(index, entries)
    planted.sign()
    assert any("its classes, x, y, do not fit" in fault for fault in planted.contents().faults)


def test_one_label_that_is_changed_in_the_index(planted: Run) -> None:
    """Not the first of its shard, which is looked at when the shard is opened."""
    told = json.loads(planted.manifest.read_text())
    (shard,) = told["splits"]["train"]["shards"]
    index = planted.manifest.parent / shard["index"]
    entries = np.load(index)
    entries["label"][-1] = 1 - entries["label"][-1]
    np.save(index, entries)
    planted.sign()
    assert any("has another label in the index" in fault for fault in planted.contents().faults)


@pytest.mark.parametrize("told", [{"patient": "P-Z"}, {"label": "y"}])
def test_a_table_that_is_edited_after_the_shards_were_written(
    planted: Run, told: dict[str, str]
) -> None:
    planted.change("A", **told)
    assert "train: A has another patient or label in the shards" in planted.contents().faults


def test_a_slide_that_is_moved_to_another_split_in_the_table(planted: Run) -> None:
    planted.change("A", split="test")
    assert planted.contents().faults == ["train: A is in the shards and is a slide of test"]


def test_counts_and_records_that_the_table_tells_otherwise(planted: Run) -> None:
    planted.change("T", tiles=5, sha256="0" * 64)
    assert planted.contents().faults == [
        "test: T has other records than the table tells",
        "test: T has 5 tiles in the table and 4 records",
    ]


def test_classes_that_are_reversed_in_the_manifest(planted: Run) -> None:
    change(planted.manifest, classes=["y", "x"])
    assert any("its classes, y, x, do not fit" in fault for fault in planted.contents().faults)


def test_shards_of_another_run(planted: Run, tmp_path: Path) -> None:
    other = Run(tmp_path / "other")
    other.rows = {name.lower(): row for name, row in other.rows.items()}
    other.rows = {n: CohortSlide(**{**vars(r), "slide": n}) for n, r in other.rows.items()}
    for name in other.rows:
        other.write(name, [jpeg(other.rng.integers(0, 255, (16, 16, 3), np.uint8))])
    other.shard()
    shutil.rmtree(planted.manifest.parent)
    shutil.copytree(other.manifest.parent, planted.manifest.parent)
    faults = planted.contents().faults
    assert "train: a is in the shards and not in the cohort" in faults
    assert "train: A is not in the shards" in faults


def test_shards_that_are_replaced_after_the_training(planted: Run) -> None:
    told = planted.manifest.read_text()
    change_shard = json.loads(told)["splits"]["train"]["shards"][0]["file"]
    path = planted.manifest.parent / change_shard
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    faults = planted.contents().faults
    assert f"train: {path.name} is another file than the manifest tells" in faults
    assert any("damaged" in one for one in faults)


def test_records_and_shards_that_are_gone(planted: Run) -> None:
    planted.path("T").unlink()
    next(planted.manifest.parent.glob("valid-*.tfrecord")).unlink()
    faults = planted.contents().faults
    assert any(one.startswith("test: T: T.tfrecord: no such record file") for one in faults)
    assert any(one.startswith("valid: manifest.json: names valid-") for one in faults)


def test_a_third_split_in_the_shards(planted: Run) -> None:
    told = json.loads(planted.manifest.read_text())
    told["splits"]["test"] = told["splits"]["valid"]
    write_json(planted.manifest, told)
    assert "test is in the shards" in planted.contents().faults


# --- The pages


def sign_model(run: Path) -> None:
    manifest = run / "shards/manifest.json"
    path = run / "model/settings.json"
    inputs = json.loads(path.read_text())["inputs"]
    change(path, inputs=inputs | {"shards/manifest.json": sha256_of(manifest)})


def test_the_planted_leak_is_at_the_top_of_the_page(run: Path) -> None:
    """A test slide in place of a train slide of the same label, with as many tiles."""
    rows = [list(row.values()) for row in read_table(run / "tiles.tsv") if row["state"] == "tiled"]
    given, taken = (next(row for row in rows if row[0] == name) for name in ("S00", "S03"))
    assert given[2] == taken[2] and given[5] == taken[5]
    given[3], taken[3] = taken[3], given[3]
    shard_tiles(run, rows)
    sign_model(run)
    page = index(run)
    assert page.html.count('class="banner alarm"') == 1
    told = (
        "Broken: the shards contain the tiles of the train and valid slides, no more and no fewer"
    )
    assert told in page.text
    assert "train: S03 is in the shards and is a slide of test" in page.text


def test_a_model_that_is_no_segment_of_this_training(run: Path) -> None:
    inputs = json.loads((run / "model/settings.json").read_text())["inputs"]
    inputs.pop("shards/manifest.json")
    change(run / "model/settings.json", inputs=inputs | {"segments/0006.keras": "0" * 64})
    text = index(run).text
    assert "Broken: the model was trained on these shards, and this model was evaluated" in text
    assert "model/settings.json has no checksum of shards/manifest.json" in text
    assert "model/model.keras is not the trained model of epoch 6" in text


def test_the_voxels_of_a_train_case_in_a_test_case_with_another_segmentation(
    tmp_path: Path,
) -> None:
    image = np.random.default_rng(3).standard_normal((9, 9, 9, 2)).astype(np.float16)
    rows = []
    for number, split in enumerate(("train", "valid", "test")):
        path = tmp_path / f"C{number}.tfrecord"
        labels = np.full(image.shape[:3], number, np.uint8)
        voxels = image if split != "valid" else image + 1
        write_records(path, [encode_volume(f"C{number}", voxels, labels, ("a", "b"), {})])
        rows.append(
            CohortSlide(f"C{number}", f"P{number}", "", split, "", 1, "", sha256_of(path), "")
        )
    sources = {one.split: [Source(one.id, one.patient, "", tmp_path / f"{one.id}.tfrecord")]
               for one in rows[:2]}  # fmt: skip
    write_shards(sources, SETTINGS, tmp_path / "shards", unit="case")
    found = read_contents(tmp_path / "shards/manifest.json", tmp_path, rows, read_volume, "case")
    assert found == Contents([], ["C0 (train) = C2 (test), 2 equal"], [], 2, 6, 2)


def test_a_test_case_in_the_shards_is_at_the_top_of_the_page(case_run: Path) -> None:
    rows = read_table(case_run / "cases.tsv")
    sources = {
        split: [
            Source(row["case"], row["patient"], "", case_run / f"volumes/{row['case']}.tfrecord")
            for row in rows
            if row["state"] == "prepared" and row["case"] in names
        ]
        for split, names in (("train", ("C0", "C1", "C4")), ("valid", ("C3",)))
    }
    inputs = json.loads((case_run / "shards/manifest.json").read_text())["inputs"]
    write_shards(sources, SETTINGS, case_run / "shards", inputs=inputs, unit="case")
    sign_model(case_run)
    refresh(case_run)
    text = case_index(case_run).text
    assert "train: C4 is in the shards and is a case of test" in text
    assert "train: C2 is not in the shards" in text
