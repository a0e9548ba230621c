"""Actual reruns, and copied or moved results; test_reruns.py has the table of edits."""

import csv
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from clones import Clone
from edits import (
    SHARDS,
    TABLES,
    TEST_COHORT,
    TEST_TILES,
    TILES,
    TRAINING,
    WITH_TIMES,
    copy_with_another_slide,
    flip_a_byte,
    planned,
    replaced,
    started,
    text,
    with_row,
)

from gigatile.provenance.output_records import records_of

KNOWN, KEPT = ".snakemake/metadata", "results/.snakemake-metadata"


@pytest.fixture(scope="module")
def run(small_run, tmp_path_factory) -> Clone:
    """Return a copy of the run. Tests must undo their edits."""
    return copy_with_another_slide(small_run, tmp_path_factory.mktemp("run"))


# --- The same jobs run as are planned


@pytest.mark.slow
def test_new_test_slide_trains_nothing(copied_run):
    """Exactly the planned jobs run, and then nothing is left to do."""
    results = copied_run.folder / "results/small"
    before = {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for name in ("shards", "segments", "model")
        for path in (results / name).iterdir()
    }
    shutil.copy(copied_run.folder / "cohort/P10-1.svs", copied_run.folder / "cohort/more.svs")
    sheet = copied_run.folder / "cohort/samples.tsv"
    known = next(row for row in sheet.read_text().splitlines() if row.startswith("P10-1\t"))
    sheet.write_text(sheet.read_text() + known.replace("P10-1", "more") + "\n")
    asked = ("--cores", "2", "--configfile", "small.yaml")
    done = copied_run.snakemake(*asked)
    assert started(done) == {"tile"} | TEST_COHORT
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in before} == before
    with (results / "evaluation/slides.tsv").open() as handle:
        scored = {row["slide"]: row for row in csv.DictReader(handle, delimiter="\t")}
    assert {k: v for k, v in scored["more"].items() if k != "slide"} == {
        k: v for k, v in scored["P10-1"].items() if k != "slide"
    }
    assert copied_run.jobs("--configfile", "small.yaml") == {}


@pytest.mark.long
@pytest.mark.slow
def test_lost_results_are_made_again_with_the_same_bytes(copied_run):
    results = copied_run.folder / "results/small"
    files = [p for p in results.rglob("*") if p.is_file() and not set(p.parts) & WITH_TIMES]
    before = {path: path.read_bytes() for path in files}
    (results / "tiles/P03-1.tfrecord").unlink()
    flip_a_byte(results / "shards/slides.tsv")
    (results / "shards/valid-00000-of-00001.tfrecord").unlink()
    flip_a_byte(results / "model/history.tsv")
    expected = planned(copied_run)
    done = copied_run.snakemake("--cores", "2", "--configfile", "small.yaml")
    assert started(done) == expected == {"tile"} | TABLES
    changed = {p.name for p, content in before.items() if p.read_bytes() != content}
    assert changed == set()
    assert planned(copied_run) == set()


@pytest.mark.slow
def test_slides_with_other_times_are_read_once(copied_run):
    """Then the records have the new times, and no plan reads a slide."""
    slides = sorted((copied_run.folder / "cohort").glob("*.svs"))
    for path in slides:
        os.utime(path, (1e9, 1e9))
    results = copied_run.folder / "results/small"
    before, files = records_of(results, "tile"), set((results / "provenance").rglob("*"))
    assert len(before) == len(slides)
    assert planned(copied_run) == set()
    assert set((results / "provenance").rglob("*")) == files, "a plan writes nothing"
    assert records_of(results, "tile") == before
    copied_run.snakemake("--cores", "1", "--configfile", "small.yaml")
    for slide, record in records_of(results, "tile").items():
        old = before[slide]
        assert old.source.modified_ns != record.source.modified_ns == 10**18
        source = old.source.model_copy(update={"modified_ns": 10**18})
        assert record == old.model_copy(update={"source": source})
    for path in slides:  # change the content, which only reading shows
        flip_a_byte(path)
        os.utime(path, (1e9, 1e9))
    assert planned(copied_run) == set()


@pytest.mark.long
@pytest.mark.slow
def test_unreadable_slide_is_recorded_with_its_reason(copied_run):
    slide = copied_run.folder / "cohort/text.svs"
    slide.unlink()
    slide.mkdir()
    assert planned(copied_run) == {"tile"} | TEST_TILES
    copied_run.snakemake("--cores", "2", "--configfile", "small.yaml")
    assert planned(copied_run) == set()
    states = (copied_run.folder / "results/small/tiles.tsv").read_text()
    assert "it is a folder, not a file" in states


def test_touched_results_are_current(copied_run):
    """Snakemake's --touch accepts all results."""
    other_code = replaced("QUALITY = 80", "QUALITY = 40 * 2")
    with text("gigatile/slides/tiling.py", other_code)(copied_run.folder):
        assert planned(copied_run) == TILES
        copied_run.snakemake("--touch", "--cores", "1", "--configfile", "small.yaml")
        assert planned(copied_run) == set()


def test_failed_training_runs_again(copied_run):
    """Snakemake would restore the old outputs and record the parameters of the failed job."""
    asked = ("--configfile", "small.yaml", "--config", "train={batch_size: 16}")
    broken = ("--set-resources", "train:launcher=false")
    done = copied_run.snakemake("--cores", "2", *asked, *broken, check=False)
    assert done.returncode == 1
    assert planned(copied_run, "train={batch_size: 16}") == TRAINING
    assert planned(copied_run) == TRAINING


def test_plan_does_not_read_slides_before_tiling(copied_run):
    """Reading a pipe without a writer would never end."""
    shutil.rmtree(copied_run.folder / "results")
    for slide in (copied_run.folder / "cohort").glob("*.svs"):
        slide.unlink()
        os.mkfifo(slide)
    command = [Path(sys.executable).parent / "snakemake", "-n", "--configfile", "small.yaml", "-p"]
    plan = subprocess.run(
        command, cwd=copied_run.folder, timeout=100, capture_output=True, text=True
    )
    assert plan.stdout.count("rule tile:") == 12, plan.stdout + plan.stderr


# --- Where the project and its results lie


def scramble_times(folder: Path) -> None:
    """Give every file another time, as copying in any order does."""
    now, random = time.time(), Random(1)
    for path in folder.rglob("*"):
        when = now - random.randrange(3600)
        os.utime(path, (when, when), follow_symlinks=False)


def assert_changes_are_detected(run: Clone) -> None:
    assert planned(run) == set()
    assert planned(run, "train={batch_size: 16}") == TRAINING
    with text("cohort/samples.tsv", with_row("more\tN1\tluad\tmore.svs\ttest"))(run.folder):
        assert planned(run) == {"tile"} | TEST_COHORT


def test_copied_results_are_current_in_a_fresh_clone(run, clone):
    for name in ("cohort", "results"):
        shutil.copytree(run.folder / name, clone.folder / name)
    shutil.copy(run.folder / "small.yaml", clone.folder)
    scramble_times(clone.folder / "results")
    assert_changes_are_detected(clone)
    # Times do not count for models, tables of scores and states above the size limit.
    for path in (clone.folder / "cohort").iterdir():
        os.utime(path, (1e9, 1e9))
    sizes = [p.stat().st_size for p in (clone.folder / "results").rglob("*.keras")]
    limit = ("--max-checksum-file-size", "100kB")
    assert sizes and min(sizes) > 100_000
    assert clone.jobs("--configfile", "small.yaml", *limit) == {}


def test_results_are_current_without_the_snakemake_folder(run):
    shutil.rmtree(run.folder / ".snakemake")
    assert_changes_are_detected(run)


def test_metadata_of_an_earlier_release_stay_valid(copied_run):
    """They were in .snakemake/; the next run moves them."""
    known, kept = (copied_run.folder / name for name in (KNOWN, KEPT))
    known.unlink()
    kept.rename(known)
    assert planned(copied_run) == set()
    assert not kept.exists(), "a plan moves no files"
    copied_run.snakemake("results/small/splits.tsv", "--cores", "1", "--configfile", "small.yaml")
    assert known.is_symlink() and kept.is_dir()
    assert planned(copied_run) == set()
    assert planned(copied_run, "train={batch_size: 16}") == TRAINING


@pytest.mark.long
@pytest.mark.slow
def test_unchanged_shards_train_nothing(copied_run):
    """The code of the tiling changed, but all tiles have the same bytes as before."""
    segments = copied_run.folder / "results/small/segments"
    before = {path.name: path.read_bytes() for path in segments.iterdir()}
    asked = ("--cores", "2", "--configfile", "small.yaml")
    other_code = replaced("QUALITY = 80", "QUALITY = 40 * 2")
    with text("gigatile/slides/tiling.py", other_code)(copied_run.folder):
        assert planned(copied_run) == TILES
        tables = ("--until", "collect", "collect_training")
        assert started(copied_run.snakemake(*asked, *tables)) == TILES - SHARDS
        assert planned(copied_run) == set(), "the tables have not changed"
        assert started(copied_run.snakemake(*asked, "--forcerun", "write_shards")) == SHARDS
        assert planned(copied_run) == set()
    assert {path.name: path.read_bytes() for path in segments.iterdir()} == before
    log = (copied_run.folder / "results/small/logs/train/0001.log").read_text()
    assert "resuming after epoch 1 of 1" in log and "epoch 1/1" not in log
    other = (*asked, "--config", "train={batch_size: 16}")
    copied_run.snakemake(*other, "--until", "train")
    log = (copied_run.folder / "results/small/logs/train/0001.log").read_text()
    assert "made with other settings, data or code; skipped" in log and "epoch 1/1: loss" in log
    assert (segments / "0001.keras").read_bytes() != before["0001.keras"]
