"""Shards do not depend on the number of ranks; failures of ranks."""

import hashlib
import io
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from clones import ROOT
from launched import ENVIRONMENT, on_ranks
from made_records import bytes_of, joined, names, read_shards, write_sources

from gigatile.errors import START_AGAIN, UserError
from gigatile.files import sha256_of
from gigatile.records import decode_tile, shard_layout
from gigatile.records.writing import write_shards
from gigatile.settings.shards import ShardSettings
from gigatile.tables import write_table

SETTINGS = ShardSettings(target_mb=0.002)
FAILING = "tests/records/programs/one_writer_fails.py"
# Number of files and checksum of these shards, in the order of commit e368566 (one process, a whole
# split in memory), with appended patient and label.
EARLIER = {
    0.002: (112, "4ff79e6cc58ac2b737935aef5a1bfa5042f6956cd4e13809e658eea407132e45"),
    100: (4, "5f61580d7483d73585f9342391082e780c64d72ec89da3a0392edf7ba83a0b6f"),
}


@pytest.fixture(scope="module")
def cohort(tmp_path_factory) -> Path:
    """A folder with tiles.tsv and records: ten slides for training, three for validation."""
    folder = tmp_path_factory.mktemp("cohort")
    sources = {
        "train": write_sources(folder, [9 * n for n in range(10)], "T"),
        "valid": write_sources(folder, [12, 1, 20], "V"),
    }
    columns = ("slide", "patient", "label", "split", "state", "tiles", "reason", "sha256")
    rows = [
        (
            *(source.slide, f"P-{source.slide}", source.label, split, "tiled", 1, ""),
            sha256_of(source.records),
        )
        for split, slides in sources.items()
        for source in slides
    ]
    write_table(folder / "tiles.tsv", columns, rows)
    return folder


def sources_of(cohort: Path) -> dict[str, list[shard_layout.Source]]:
    return {
        split: [
            shard_layout.Source(
                path.stem, f"P-{path.stem}", ("luad", "lusc")[int(path.stem[1:]) % 2], path
            )
            for path in sorted(cohort.glob(f"{letter}*.tfrecord"))
        ]
        for split, letter in (("train", "T"), ("valid", "V"))
    }


def digest(folder: Path) -> tuple[int, str]:
    """Return the number of files of the shards, and a checksum of their names and bytes.

    Of an index, the columns that it has had since the first release.
    """
    checksum = hashlib.sha256()
    paths = sorted(path for path in folder.iterdir() if path.name != "manifest.json")
    for path in paths:
        checksum.update(path.name.encode())
        if path.suffix == ".npy":
            entries = np.load(path)
            first = np.empty(len(entries), [("offset", "<i8"), ("label", "<i2")])
            first["offset"], first["label"] = entries["offset"], entries["label"]
            np.save(content := io.BytesIO(), first)
            checksum.update(content.getvalue())
        else:
            checksum.update(path.read_bytes())
    return len(paths), checksum.hexdigest()


def command_line(
    ranks: int, cohort: Path, out: Path, *options: object, program="scripts/write_shards.py"
):
    arguments = [
        *(
            *options,
            "--task",
            "tile_classification",
            "--table",
            cohort / "tiles.tsv",
            "--records",
            cohort,
            "--out",
            out,
        ),
        *("--settings", json.dumps({"target_mb": 0.002}), "--ranks", ranks),
    ]
    return on_ranks(ranks, program, *arguments)


def launch(*arguments, **options) -> subprocess.CompletedProcess:
    line = command_line(*arguments, **options)
    return subprocess.run(line, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def written(cohort, tmp_path_factory) -> Path:
    """Shards written by a single process."""
    out = tmp_path_factory.mktemp("written")
    write_shards(sources_of(cohort), SETTINGS, out, inputs=inputs_of(cohort))
    return out


def inputs_of(cohort: Path) -> dict[str, str]:
    """Return the checksums of the tiles of each split, computed by the shell."""
    checksums = {}
    for split, letter in (("train", "T"), ("valid", "V")):
        # The files of this cohort are next to the table, those of a run in tiles/.
        command = f"sha256sum {letter}*.tfrecord | sed 's|  |  tiles/|' | sha256sum"
        summed = subprocess.run(
            ["bash", "-c", f"LC_ALL=C; {command}"], cwd=cohort, capture_output=True, check=True
        )
        checksums[f"tiles/<slide>.tfrecord of {split}"] = summed.stdout.decode().split()[0]
    return checksums


# --- Reproducible bytes


@pytest.mark.parametrize("target_mb", EARLIER)
def test_bytes_equal_those_of_earlier_releases(cohort, tmp_path, target_mb):
    write_shards(sources_of(cohort), ShardSettings(target_mb=target_mb), tmp_path)
    assert digest(tmp_path) == EARLIER[target_mb]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_bytes_do_not_depend_on_the_number_of_ranks(cohort, written, tmp_path, ranks):
    done = launch(ranks, cohort, tmp_path)
    assert done.returncode == 0, done.stderr
    assert bytes_of(tmp_path) == bytes_of(written)


def test_number_of_runs_does_not_matter(cohort, written, tmp_path, monkeypatch):
    monkeypatch.setattr(shard_layout, "RUN_RECORDS", 7)
    write_shards(sources_of(cohort), SETTINGS, tmp_path)
    assert digest(tmp_path) == digest(written)


def test_records_with_equal_keys_are_ordered(cohort, tmp_path, monkeypatch):
    """Equal keys are rare among 2^64, so the test reduces them to three."""
    random64 = shard_layout.random64
    monkeypatch.setattr(shard_layout, "random64", lambda *args: random64(*args) % np.uint64(3))
    write_shards(sources_of(cohort), SETTINGS, tmp_path / "one")
    monkeypatch.setattr(shard_layout, "RUN_RECORDS", 7)
    write_shards(sources_of(cohort), SETTINGS, tmp_path / "two")
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")
    shards = read_shards(tmp_path / "one", "train")
    assert max(map(len, shards)) - min(map(len, shards)) == 1
    assert sorted(joined(shards)) == sorted(names(sources_of(cohort)["train"]))


def test_stock_tensorflow_reads_the_shards(written):
    for split in ("train", "valid"):
        paths = [str(path) for path in sorted(written.glob(f"{split}-*.tfrecord"))]
        tiles = [decode_tile(data) for data in tf.data.TFRecordDataset(paths).as_numpy_iterator()]
        assert [(tile.slide, tile.x) for tile in tiles] == joined(read_shards(written, split))


def test_manifest_has_the_checksums_of_its_inputs(cohort, tmp_path):
    launch(1, cohort, tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["inputs"] == inputs_of(cohort)


# --- Faults


def damaged(cohort: Path, folder: Path, *slides: str) -> Path:
    """Return a copy of the cohort with a flipped bit in a tile of each of these slides."""
    for path in cohort.iterdir():
        data = bytearray(path.read_bytes())
        if path.stem in slides:
            data[-30] ^= 1
        (folder / path.name).write_bytes(data)
    return folder


def test_more_labels_than_an_index_can_number_are_refused(cohort, tmp_path):
    path = sources_of(cohort)["train"][1].records
    sources = [shard_layout.Source(f"S{n}", f"P{n}", f"{n}.5", path) for n in range(1 << 15)]
    with pytest.raises(UserError, match="32768 different labels or outcomes; at most 32767"):
        write_shards({"train": sources}, SETTINGS, tmp_path)


def test_flipped_bit_is_reported_once(cohort, tmp_path):
    (tmp_path / "copy").mkdir()
    copy, out = damaged(cohort, tmp_path / "copy", "T5"), tmp_path / "shards"
    start = time.monotonic()
    done = launch(3, copy, out)
    assert time.monotonic() - start < 15
    assert done.returncode == 2 and "Traceback" not in done.stderr
    (error,) = [row for row in done.stderr.splitlines() if row.startswith("error")]
    assert "T5.tfrecord: the record at byte" in error and "checksum of its data" in error
    assert not (out / "manifest.json").exists() and not (out / ".layout").exists()


@pytest.mark.parametrize(
    ("how", "rank", "status", "expected"),
    [
        ("mistake", 1, 2, "error: this writer has read nonsense"),
        ("mistake", 0, 2, "error: this writer has read nonsense"),
        ("bug", 1, 1, "RuntimeError: this writer has had enough"),
        ("alone", 1, 1, "RuntimeError: outside a collective call"),
    ],
)
def test_error_of_one_rank_ends_all_ranks(cohort, tmp_path, how, rank, status, expected):
    start = time.monotonic()
    done = launch(3, cohort, tmp_path, "--how", how, "--rank", rank, program=FAILING)
    assert time.monotonic() - start < 15
    assert done.returncode == status, done.stderr
    assert done.stderr.splitlines().count(expected) == 1
    assert ("Traceback" in done.stderr) == (status == 1)
    assert not (tmp_path / "manifest.json").exists()
    assert (tmp_path / ".layout").exists() == (how == "alone"), "the next run deletes it"


def test_restart_after_a_kill_gives_the_same_bytes(cohort, written, tmp_path):
    done = launch(2, cohort, tmp_path, "--how", "kill", "--rank", 1, program=FAILING)
    assert done.returncode == 137
    assert not (tmp_path / "manifest.json").exists()
    assert (tmp_path / ".layout").is_dir()
    (tmp_path / ".train-00000-of-00003-x1.tfrecord").touch()  # of a killed rank
    done = launch(2, cohort, tmp_path)
    assert done.returncode == 0, done.stderr
    assert bytes_of(tmp_path) == bytes_of(written)


def test_hanging_rank_ends_the_others(cohort, tmp_path):
    options = ("--how", "hang", "--rank", 1, "--stall-limit", 2)
    start = time.monotonic()
    done = launch(2, cohort, tmp_path, *options, program=FAILING)
    assert time.monotonic() - start < 20
    assert done.returncode != 0
    assert "no step finished for 2 s, last " in done.stderr
    assert f"exited with status {START_AGAIN}" in done.stderr


def test_wrong_number_of_ranks_is_refused(cohort, tmp_path):
    line = command_line(2, cohort, tmp_path)
    line[line.index("--ranks") + 1] = "3"
    done = subprocess.run(line, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "started as 2 process(es), but --ranks is 3" in done.stderr


# --- Memory


def test_memory_does_not_grow_with_the_cohort(tmp_path):
    """Shards of 2 MB, from 10 MB and from 120 MB of tiles."""
    peaks = []
    for slides in (1, 12):
        folder = tmp_path / str(slides)
        folder.mkdir()
        for source in write_sources(folder, [600] * slides, size=16_000):
            assert source.records.stat().st_size > 9_000_000
        program = (
            "import sys\n"
            "from pathlib import Path\n"
            "from gigatile.records.shard_layout import Source\n"
            "from gigatile.records.writing import write_shards\n"
            "from gigatile.settings.shards import ShardSettings\n"
            "folder = Path(sys.argv[1])\n"
            "labels = ('luad', 'lusc')\n"
            "paths = sorted(folder.glob('*.tfrecord'))\n"
            "sources = [Source(p.stem, p.stem, labels[int(p.stem[1:]) % 2], p) for p in paths]\n"
            "write_shards({'train': sources}, ShardSettings(target_mb=2), folder / 'shards')\n"
            # Not getrusage, which includes the process before exec.
            "status = Path('/proc/self/status').read_text()\n"
            "print(status.partition('VmHWM:')[2].split()[0])\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, folder], cwd=ROOT, capture_output=True, text=True
        )
        peaks.append(int(done.stdout) / 1000)
    assert peaks[1] < peaks[0] + 10, "MB"
