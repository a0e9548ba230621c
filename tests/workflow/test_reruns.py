"""Which stages an edit runs again, and that it runs no other; docs/reruns.md shows the table."""

import contextlib
import csv
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from clones import Clone

ENDS = {"report", "all"}
EVALUATION = {"evaluate"} | ENDS
TRAINING = {"train", "validate", "choose_model"} | EVALUATION
SHARDS = {"write_shards"} | TRAINING
TABLES = {"collect_tiles", "collect_training"} | SHARDS
TILES = {"tile"} | TABLES
SPLITS = {"split_patients"} | TABLES
TEST_COHORT = {"split_patients", "collect_tiles"} | EVALUATION
# What no two runs have in common.
PRINTED = {"logs", "benchmarks", "tensorboard"}
KNOWN, KEPT = ".snakemake/metadata", "results/.snakemake-metadata"


def planned(clone: Clone, *settings: str) -> set[str]:
    options = ("--config", *settings) if settings else ()
    return set(clone.jobs("--configfile", "small.yaml", *options))


# --- Settings


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["tiles={size: 128, mpp: 0.5}"], TILES),
        (["tiles={size: 128, on_error: stop}"], TILES),
        (["split={seed: 5}"], SPLITS),
        (["shards={target_mb: 1, seed: 100}"], SHARDS),  # the defaults are 100 and 1
        (["shards={nodes: 2}"], set()),
        (["train={ranks_per_node: 2}"], set()),
        (["train={cores_per_rank: 2, stall_limit: 60, save_minutes: 1}"], set()),
        (["train={batch_size: 16}"], TRAINING),
        (["train={boost: {lusc: 2.0}}"], TRAINING),
        (["evaluate={seed: 50, resamples: 50}"], EVALUATION),
    ],
)
def test_a_setting(small_run, settings, expected):
    assert planned(small_run, *settings) == expected


# --- Files


@pytest.fixture(scope="module")
def run(small_run, tmp_path_factory) -> Clone:
    """Return a copy of the run; whoever edits it takes the edit back."""
    copy = small_run.copy(tmp_path_factory.mktemp("run"))
    shutil.copy(copy.folder / "cohort/P01-1.svs", copy.folder / "cohort/more.svs")
    return copy


@contextlib.contextmanager
def edited(clone: Clone, file: str, edit):
    """Change a file of a clone for a while."""
    path = clone.folder / file
    before = path.read_text()
    after = edit(before)
    assert after != before
    path.write_text(after)
    try:
        yield
    finally:
        path.write_text(before)


def replaced(old: str, new: str):
    return lambda text: text.replace(old, new, 1)


FUNCTION = ("\n    return ", "\n    return None or ")


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("small.yaml", "run: small\n", "# A comment.\n", set()),
        ("gigatile/slides/tissue.py", '"""', '"""In other words: ', set()),
        ("gigatile/training/simulation.py", *FUNCTION, set()),
        ("gigatile/slides/tissue.py", *FUNCTION, TILES),
        ("gigatile/cohort/splits.py", "/ 2**64", "/ 2.0**64", SPLITS),
        ("gigatile/records/plan.py", *FUNCTION, SHARDS),
        ("gigatile/training/order.py", *FUNCTION, TRAINING),
        ("gigatile/evaluation/validation.py", "loss / tiles", "loss", TRAINING - {"train"}),
        ("gigatile/evaluation/metrics.py", *FUNCTION, EVALUATION),
        ("gigatile/report/figures.py", *FUNCTION, ENDS),
        ("gigatile/report/templates/style.css", "color", "background", ENDS),
        ("scripts/tile_slide.py", "print(", "print() or print(", TILES),
        (
            "scripts/choose_model.py",
            "print(",
            "print() or print(",
            TRAINING - {"train", "validate"},
        ),
        ("envs/requirements.lock", "openslide-bin==", "openslide-bin==9", TILES),
        ("envs/requirements.lock", "matplotlib==", "matplotlib==9", ENDS),
    ],
)
def test_an_edit_of_a_file(run, file, old, new, expected):
    def edit(text):
        text = text.replace(old, new, 1)
        return text + "run: small\n" if file == "small.yaml" else text  # a key in another place

    with edited(run, file, edit):
        assert planned(run) == expected


# --- The cohort


def with_row(row: str):
    return lambda text: text + row + "\n"


def without(slide: str):
    return lambda text: "".join(
        line for line in text.splitlines(keepends=True) if not line.startswith(f"{slide}\t")
    )


def in_another_order(text: str) -> str:
    first, *rows = text.splitlines()
    return "\n".join([first, *sorted(rows, reverse=True), ""])


def with_site(text: str) -> str:
    first, *rows = text.splitlines()
    return "\n".join([f"{first}\tsite", *(f"{row}\tHome" for row in rows), ""])


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (with_site, {"split_patients"} | ENDS),
        (in_another_order, {"split_patients"} | ENDS),
        (with_row("more\tN1\tluad\tmore.svs\ttest"), {"tile"} | TEST_COHORT),
        (with_row("more\tN1\tluad\tmore.svs\tvalid"), {"tile"} | SPLITS),
        (with_row("more\tN1\tluad\tmore.svs\ttrain"), {"tile"} | SPLITS),
        (without("text"), TEST_COHORT),  # of the test split
        (without("glass"), SPLITS),  # of the train split
        (replaced("text\tB1\tluad", "text\tB1\tlusc"), TEST_COHORT),
        (replaced("glass\tB2\tlusc", "glass\tB2\tluad"), SPLITS),
        (replaced("glass\tB2\t", "glass\tB9\t"), SPLITS),
    ],
)
def test_an_edit_of_the_sheet(run, edit, expected):
    """However old the edited sheet is: it may have been restored, or copied with its time."""
    with edited(run, "cohort/samples.tsv", edit):
        assert planned(run) == expected
        if edit is with_site:
            os.utime(run.folder / "cohort/samples.tsv", (1e9, 1e9))
            assert planned(run) == expected


@pytest.mark.slow
def test_a_new_test_slide_trains_nothing(copied_run):
    """The exact jobs run, and then nothing is left to do."""
    results = copied_run.folder / "results/small"
    before = {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for name in ("shards", "segments", "model")
        for path in (results / name).iterdir()
    }
    shutil.copy(copied_run.folder / "cohort/P10-1.svs", copied_run.folder / "cohort/more.svs")
    sheet = copied_run.folder / "cohort/samples.tsv"
    whose = next(row for row in sheet.read_text().splitlines() if row.startswith("P10-1\t"))
    sheet.write_text(sheet.read_text() + whose.replace("P10-1", "more") + "\n")
    asked = ("--cores", "2", "--configfile", "small.yaml")
    done = copied_run.snakemake(*asked)
    started = {
        line.split()[1].rstrip(":")
        for line in (done.stdout + done.stderr).splitlines()
        if line.startswith(("rule ", "localrule "))
    }
    assert started - {"all"} == ({"tile"} | TEST_COHORT) - {"all"}
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in before} == before
    with (results / "evaluation/slides.tsv").open() as handle:
        scored = {row["slide"]: row for row in csv.DictReader(handle, delimiter="\t")}
    assert {k: v for k, v in scored["more"].items() if k != "slide"} == {
        k: v for k, v in scored["P10-1"].items() if k != "slide"
    }
    assert copied_run.jobs("--configfile", "small.yaml") == {}


# --- Slides


@contextlib.contextmanager
def kept(path: Path):
    """Let a file be changed for a while."""
    content, seen = path.read_bytes(), path.stat()
    try:
        yield
    finally:
        path.write_bytes(content)
        os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("when", [1e9, 2e9])
def test_a_slide_with_another_time_is_not_cut_again(run, when):
    with kept(run.folder / "cohort/P01-1.svs"):
        os.utime(run.folder / "cohort/P01-1.svs", (when, when))
        assert planned(run) == set()
        # As with slides above the limit up to which Snakemake compares the content.
        limit = ("--max-checksum-file-size", "1kB", "--until", "tile")
        assert run.jobs("--configfile", "small.yaml", *limit) == {}


@pytest.mark.parametrize(
    ("slide", "expected"),
    [("P01-1", {"tile"} | TABLES), ("P10-1", {"tile", "collect_tiles"} | EVALUATION)],
)
def test_a_slide_with_another_content_is_cut_again_however_old_it_is(run, slide, expected):
    path = run.folder / f"cohort/{slide}.svs"
    with kept(path):
        flip_a_byte(path)
        os.utime(path, (1e9, 1e9))
        assert planned(run) == expected


@pytest.mark.slow
def test_slides_with_other_times_are_read_once(copied_run):
    """Then the notes have the new times, and no plan reads a slide."""
    slides = sorted((copied_run.folder / "cohort").glob("*.svs"))
    for path in slides:
        os.utime(path, (1e9, 1e9))
    notes = {p: p.stat().st_mtime_ns for p in copied_run.folder.glob("results/small/made/tile/*")}
    assert planned(copied_run) == set()
    assert {p: p.stat().st_mtime_ns for p in notes} == notes, "a plan writes nothing"
    before = [p.read_text() for p in notes]
    copied_run.snakemake("--cores", "1", "--configfile", "small.yaml")
    assert {p: p.stat().st_mtime_ns for p in notes} == notes, "of the outputs they are as old"
    for path, text in zip(notes, before, strict=True):
        assert path.read_text() == re.sub(r'(?<="modified_ns": )\d+', str(10**18), text) != text
    for path in slides:  # of another content, which only reading shows
        flip_a_byte(path)
        os.utime(path, (1e9, 1e9))
    assert planned(copied_run) == set()


def test_a_slide_that_is_to_be_cut_is_not_read_for_the_plan(copied_run):
    """A cohort of terabytes is planned as fast as a small one: who reads a pipe waits for ever."""
    shutil.rmtree(copied_run.folder / "results")
    for slide in (copied_run.folder / "cohort").glob("*.svs"):
        slide.unlink()
        os.mkfifo(slide)
    command = [Path(sys.executable).parent / "snakemake", "-n", "--configfile", "small.yaml", "-p"]
    plan = subprocess.run(
        command, cwd=copied_run.folder, timeout=100, capture_output=True, text=True
    )
    assert plan.stdout.count("rule tile:") == 12, plan.stdout + plan.stderr


# --- What was made


GONE_OR_DAMAGED = [
    ("splits.tsv", {"split_patients"} | ENDS),
    ("tiles.tsv", {"collect_tiles"} | EVALUATION),
    ("shards/slides.tsv", {"collect_training"} | SHARDS),
    ("shards/manifest.json", SHARDS),
    ("segments/0001.json", TRAINING),
    ("segments/0001.valid.json", TRAINING - {"train"}),
    ("model/settings.json", TRAINING - {"train", "validate"}),
    ("evaluation/metrics.json", EVALUATION),
]


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        *GONE_OR_DAMAGED,
        ("tiles/P01-1.tfrecord", {"tile"} | TABLES),
        ("tiles/P01-1.json", {"tile"} | TABLES),
        ("tiles/P10-1.jpg", {"tile", "collect_tiles"} | EVALUATION),
        ("shards/train-00000-of-00001.tfrecord", SHARDS),
        ("shards/valid-00000-of-00001.index.npy", SHARDS),
        ("model/model.keras", TRAINING - {"train", "validate"}),
        ("report/index.html", ENDS),
        ("report/slides/P10-1.html", ENDS),
    ],
)
def test_an_output_that_is_gone_is_made_again(run, file, expected):
    path = run.folder / "results/small" / file
    with kept(path):
        path.unlink()
        assert planned(run) == expected


@pytest.mark.parametrize(("file", "expected"), GONE_OR_DAMAGED)
def test_a_table_that_is_damaged_is_made_again(run, file, expected):
    path = run.folder / "results/small" / file
    with kept(path):
        flip_a_byte(path)
        assert planned(run) == expected
        os.utime(path)
    with kept(path):
        path.touch()
        assert planned(run) == set()


def test_anything_that_is_cut_short_is_made_again(run):
    path = run.folder / "results/small/tiles/P01-1.tfrecord"
    with kept(path):
        os.truncate(path, path.stat().st_size - 1)
        assert planned(run) == {"tile"} | TABLES


def test_a_folder_that_was_put_away_is_not_missed(run):
    tiles = run.folder / "results/small/tiles"
    tiles.rename(run.folder / "away")
    try:
        assert planned(run) == set()
    finally:
        (run.folder / "away").rename(tiles)


@pytest.mark.slow
def test_what_was_lost_is_made_as_it_was(copied_run):
    results = copied_run.folder / "results/small"
    files = [p for p in results.rglob("*") if p.is_file() and not set(p.parts) & PRINTED]
    before = {path: path.read_bytes() for path in files}
    (results / "tiles/P03-1.tfrecord").unlink()
    flip_a_byte(results / "shards/slides.tsv")
    (results / "shards/valid-00000-of-00001.tfrecord").unlink()
    flip_a_byte(results / "model/history.tsv")
    copied_run.snakemake("--cores", "2", "--configfile", "small.yaml")
    changed = {p.name for p, content in before.items() if p.read_bytes() != content}
    assert changed == set()
    assert planned(copied_run) == set()


# --- Where the project and its results lie


def scramble_times(folder: Path) -> None:
    """Give every file another time, as copying does in an order of its own."""
    now, random = time.time(), Random(1)
    for path in folder.rglob("*"):
        when = now - random.randrange(3600)
        os.utime(path, (when, when), follow_symlinks=False)


def assert_it_is_known_how_it_was_made(run: Clone) -> None:
    assert planned(run) == set()
    assert planned(run, "train={batch_size: 16}") == TRAINING
    with edited(run, "cohort/samples.tsv", with_row("more\tN1\tluad\tmore.svs\ttest")):
        assert planned(run) == {"tile"} | TEST_COHORT


def test_copied_results_are_current_in_a_fresh_clone(run, clone):
    for name in ("cohort", "results"):
        shutil.copytree(run.folder / name, clone.folder / name)
    shutil.copy(run.folder / "small.yaml", clone.folder)
    scramble_times(clone.folder / "results")
    assert_it_is_known_how_it_was_made(clone)
    # As with models, tables of scores and states above the limit: their times say nothing.
    for path in (clone.folder / "cohort").iterdir():
        os.utime(path, (1e9, 1e9))
    sizes = [p.stat().st_size for p in (clone.folder / "results").rglob("*.keras")]
    limit = ("--max-checksum-file-size", "100kB")
    assert sizes and min(sizes) > 100_000
    assert clone.jobs("--configfile", "small.yaml", *limit) == {}


def test_results_are_current_without_the_folder_of_snakemake(run):
    shutil.rmtree(run.folder / ".snakemake")
    assert_it_is_known_how_it_was_made(run)


def test_what_an_earlier_release_noted_stays_known(copied_run):
    """It was in .snakemake/; the next run that makes something moves it."""
    known, kept = (copied_run.folder / name for name in (KNOWN, KEPT))
    known.unlink()
    kept.rename(known)
    assert planned(copied_run) == set()
    assert not kept.exists(), "a plan moves nothing"
    copied_run.snakemake("results/small/splits.tsv", "--cores", "1", "--configfile", "small.yaml")
    assert known.is_symlink() and kept.is_dir()
    assert planned(copied_run) == set()
    assert planned(copied_run, "train={batch_size: 16}") == TRAINING


def test_everything_is_made_again_where_the_results_were_deleted(run):
    kept = run.folder / "results"
    kept.rename(run.folder / "away")
    try:
        assert planned(run) == SPLITS | {"tile"}
        assert not kept.exists(), "a plan makes nothing"
    finally:
        (run.folder / "away").rename(kept)


def test_the_cluster_makes_nothing_again(run):
    assert set(run.jobs("--configfile", "small.yaml", "--profile", "profiles/slurm")) == set()


@pytest.mark.slow
def test_shards_that_come_out_as_they_were_train_nothing(copied_run):
    """The tiling's code changed, and every tile is cut again: to the same bytes."""
    segments = copied_run.folder / "results/small/segments"
    before = {path.name: path.read_bytes() for path in segments.iterdir()}
    asked = ("--cores", "2", "--configfile", "small.yaml")
    with edited(
        copied_run, "gigatile/slides/tiling.py", replaced("QUALITY = 80", "QUALITY = 40 * 2")
    ):
        assert planned(copied_run) == TILES
        copied_run.snakemake(*asked)
        assert planned(copied_run) == set()
    assert {path.name: path.read_bytes() for path in segments.iterdir()} == before
    log = (copied_run.folder / "results/small/logs/train/0001.log").read_text()
    assert "going on after epoch 1 of 1" in log and "epoch 1/1" not in log
    other = (*asked, "--config", "train={batch_size: 16}")
    copied_run.snakemake(*other, "--until", "train")
    log = (copied_run.folder / "results/small/logs/train/0001.log").read_text()
    assert "of other settings, data or code, passed over" in log and "epoch 1/1: loss" in log
    assert (segments / "0001.keras").read_bytes() != before["0001.keras"]
