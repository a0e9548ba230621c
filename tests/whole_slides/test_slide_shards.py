"""Shards of whole slides: the tiles of a slide stay together, each with its cell in the grid."""

import dataclasses
import json
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from launched import ENVIRONMENT, on_ranks

from gigatile.errors import UserError
from gigatile.files import sha256_of
from gigatile.parallel.world import World
from gigatile.records import Tile, encode_tile, write_records
from gigatile.records.shard_layout import SlideGrid, Source
from gigatile.records.slide_layout import lay_out_slides
from gigatile.records.slides import SlideReader
from gigatile.records.writing import write_shards
from gigatile.settings.shards import ShardSettings
from gigatile.tables import write_table

SETTINGS = ShardSettings(target_mb=0.004, seed=3)
LABELS = ("luad", "lusc")
EXTENT = 36.4


def tile(slide: str, column: int, row: int) -> Tile:
    """Return a tile with random bytes as its image; its corner is rounded as on a slide."""
    image = np.random.default_rng([column + 1, row + 1, *slide.encode()]).bytes(100)
    return Tile(image, slide, round(column * EXTENT), round(row * EXTENT), EXTENT, 0.5, 1.0)


def write_source(folder: Path, slide: str, tiles: list[Tile], columns: int, rows: int) -> Source:
    """Write the records of a slide."""
    path = folder / f"{slide}.tfrecord"
    write_records(path, map(encode_tile, tiles))
    label = LABELS[int(slide[1:]) % 2]
    mpp = None if slide == "T1" else 0.5
    return Source(slide, f"P-{slide}", label, path, SlideGrid(columns, rows, EXTENT, mpp))


def write_sources(folder: Path, letter: str, count: int) -> dict[str, tuple[Source, dict]]:
    """Write slides of random sizes; return each source, and its tiles by (row, column)."""
    random = np.random.default_rng(count)
    sources = {}
    for number in range(count):
        slide, columns, rows = f"{letter}{number}", *random.integers(1, 9, 2).tolist()
        stored = random.random((rows, columns)) < 0.6
        stored[rows // 2, 0] = True
        tiles = {
            (row, column): tile(slide, column, row)
            for row, column in zip(*(index.tolist() for index in np.nonzero(stored)), strict=True)
        }
        source = write_source(folder, slide, list(tiles.values()), columns, rows)
        sources[slide] = source, tiles
    return sources


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    """The slides of two splits: sources and tiles."""
    folder = tmp_path_factory.mktemp("cohort")
    return {"train": write_sources(folder, "T", 11), "valid": write_sources(folder, "V", 3)}


def sources_of(cohort) -> dict[str, list[Source]]:
    return {split: [source for source, _ in slides.values()] for split, slides in cohort.items()}


def write(sources, out: Path, world: World | None = None) -> None:
    write_shards(sources, SETTINGS, out, world, lay_out=lay_out_slides)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def written(cohort, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("written")
    write(sources_of(cohort), out)
    return out


def test_every_slide_is_read_whole(cohort, written):
    for split, slides in cohort.items():
        reader = SlideReader(written / "manifest.json", split)
        assert len(reader) == len(slides)
        labels = reader.classes_at(np.arange(len(reader)))
        remaining = dict(slides)
        for number in range(len(reader)):
            read = reader[number]
            source, tiles = remaining.pop(read.slide.slide)
            assert (read.slide.columns, read.slide.rows) == (source.grid.columns, source.grid.rows)
            assert (read.slide.extent, read.slide.mpp) == (EXTENT, source.grid.mpp)
            assert read.cells.shape == (source.grid.rows, source.grid.columns)
            assert {tuple(cell) for cell in np.argwhere(read.cells >= 0).tolist()} == tiles.keys()
            assert read.slide.tiles == len(tiles)
            for cell, expected in tiles.items():
                assert reader.image(int(read.cells[cell])) == expected.image
            assert reader.classes[labels[number]] == source.label
        assert not remaining
        numbers = [len(reader.classes_of(shard)) for shard in range(len(reader.counts))]
        assert reader.counts.sum(axis=1).tolist() == numbers and min(numbers) > 0
        np.testing.assert_array_equal(np.bincount(labels, minlength=2), reader.counts.sum(axis=0))
        reader.close()


def test_shards_have_about_the_target_size_and_shuffled_slides(cohort, written):
    manifest = json.loads((written / "manifest.json").read_text())
    shards = manifest["splits"]["train"]["shards"]
    order = [slide["slide"] for shard in shards for slide in shard["slides"]]
    assert order != sorted(order) and len(shards) > 2
    largest = max(slide["tiles"] for shard in shards for slide in shard["slides"])
    sizes = [shard["records"] for shard in shards]
    assert max(sizes) - min(sizes) <= 2 * largest


class Rank(World):
    """A thread as a rank of a launch."""

    def __init__(self, rank: int, results: list, barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, len(results)
        self._results, self._barrier = results, barrier

    def gather(self, work):
        self._results[self.rank] = work()
        self._barrier.wait()
        results = list(self._results)
        self._barrier.wait()
        return results

    def on_rank0(self, work):
        return self.gather(lambda: work() if self.rank == 0 else None)[0]

    def sum(self, values):
        return np.sum(self.gather(lambda: values), axis=0)


@pytest.mark.parametrize("ranks", [2, 3, 20])
def test_slide_shards_do_not_depend_on_the_number_of_ranks(cohort, written, tmp_path, ranks):
    results, barrier = [None] * ranks, threading.Barrier(ranks, timeout=60)
    worlds = [Rank(number, results, barrier) for number in range(ranks)]
    with ThreadPoolExecutor(ranks) as pool:
        list(pool.map(lambda world: write(sources_of(cohort), tmp_path, world), worlds))
    assert bytes_of(tmp_path) == bytes_of(written)


def test_the_command_writes_the_same_shards(cohort, written, tmp_path):
    columns = ("slide", "patient", "label", "split", "state", "tiles", "reason", "sha256")
    rows = []
    for split, slides in cohort.items():
        for source, tiles in slides.values():
            grid = ["" if value is None else value for value in vars(source.grid).values()]
            row = [source.slide, source.patient, source.label, split, "tiled", len(tiles), ""]
            rows.append([*row, sha256_of(source.records), *grid])
    write_table(tmp_path / "tiles.tsv", (*columns, *vars(source.grid)), rows)
    arguments = ["--task", "slide_classification", "--table", tmp_path / "tiles.tsv"]
    arguments += ["--records", source.records.parent, "--out", tmp_path / "shards"]
    arguments += ["--settings", json.dumps({"target_mb": 0.004, "seed": 3}), "--ranks", 2]
    line = on_ranks(2, "scripts/write_shards.py", *arguments)
    done = subprocess.run(line, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    ours, expected = bytes_of(tmp_path / "shards"), bytes_of(written)
    manifests = [json.loads(files.pop("manifest.json")) for files in (ours, expected)]
    assert ours == expected
    assert manifests[0].pop("inputs") and not manifests[1].pop("inputs")
    assert manifests[0] == manifests[1]


# --- Faults


def fails(folder: Path, source: Source, fault: str) -> str:
    """Write shards of this slide and a good one; return the error, which has the fault."""
    good = write_source(folder, "T8", [tile("T8", 0, 0)], 1, 1)
    with pytest.raises(UserError, match=fault) as error:
        write({"train": [good, source]}, folder / "shards")
    assert not (folder / "shards" / "manifest.json").exists()
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


@pytest.mark.parametrize(
    ("cells", "fault"),
    [
        ([(0, 0), (3, 1)], "is not on the slide's grid"),
        ([(0, 0), (1, 2)], "is not on the slide's grid"),
        ([(-1, 0), (1, 1)], "is not on the slide's grid"),
        ([(1, 1), (0, 1), (1, 1)], "two of its tiles are at"),
    ],
)
def test_tiles_that_do_not_fit_the_grid_are_refused(tmp_path, cells, fault):
    tiles = [tile("T9", *cell) for cell in cells]
    error = fails(tmp_path, write_source(tmp_path, "T9", tiles, 3, 2), fault)
    assert error.startswith(f"{tmp_path / 'T9.tfrecord'}: ")
    assert not list((tmp_path / "shards").glob("*.tfrecord"))


def test_slides_without_grid_or_records_are_refused_by_name(tmp_path):
    source = write_source(tmp_path, "T9", [tile("T9", 0, 0)], 3, 2)
    without = dataclasses.replace(source, grid=None)
    assert str(source.records) in fails(tmp_path, without, "has no tile grid of 'T9'")
    other = dataclasses.replace(source, records=tmp_path / "T8.tfrecord")
    assert "T8.tfrecord" in fails(tmp_path, other, "contains the records of 'T8'")
    write_records(source.records, [b"text"])
    assert str(source.records) in fails(tmp_path, source, "is not a tile")
    source.records.unlink()
    assert str(source.records) in fails(tmp_path, source, "no such record file")


def test_shards_of_tiles_are_no_shards_of_slides(cohort, tmp_path):
    write_shards(sources_of(cohort), SETTINGS, tmp_path)
    with pytest.raises(UserError, match="does not consist of whole slides"):
        SlideReader(tmp_path / "manifest.json", "train")
