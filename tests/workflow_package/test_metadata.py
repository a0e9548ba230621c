"""Snakemake's metadata in results/, and what a plan does without them."""

import os
from types import SimpleNamespace

import pytest

from gigatile.errors import UserError
from gigatile.workflow.metadata import (
    KEPT_METADATA,
    check_metadata,
    has_metadata,
    keep_metadata_in_results,
)
from gigatile.workflow.snakemake_internals import INCOMPLETE, METADATA, record_files


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def process(executor="local", main=True, needs_metadata=True):
    return SimpleNamespace(is_main_process=main, executor=executor, needs_metadata=needs_metadata)


def write(path, text="", time=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if time is not None:
        os.utime(path, (time, time))


def test_run_creates_a_folder_and_a_link():
    keep_metadata_in_results(process())
    assert KEPT_METADATA.is_dir() and METADATA.is_symlink() and INCOMPLETE.is_dir()
    write(METADATA / "a", "recorded")
    assert (KEPT_METADATA / "a").read_text() == "recorded"
    keep_metadata_in_results(process())
    assert METADATA.is_symlink()


@pytest.mark.parametrize("caller", [process(executor=None), process(main=False)])
def test_plan_and_job_create_nothing(folder, caller):
    keep_metadata_in_results(caller)
    assert list(folder.iterdir()) == []


def test_plan_links_existing_metadata():
    write(KEPT_METADATA / "a")
    keep_metadata_in_results(process(executor=None))
    assert (METADATA / "a").exists()


def test_link_stays_valid_if_the_folder_is_moved(folder):
    keep_metadata_in_results(process())
    write(METADATA / "a")
    copy = folder / "copy"
    copy.mkdir()
    for name in (".snakemake", "results"):
        (folder / name).rename(copy / name)
    assert (copy / METADATA / "a").exists()


def test_dangling_link_is_removed():
    keep_metadata_in_results(process())
    KEPT_METADATA.rmdir()
    keep_metadata_in_results(process(executor=None))
    assert not METADATA.is_symlink() and not KEPT_METADATA.exists()


def test_metadata_of_an_earlier_release_are_moved():
    """The newer file counts if both exist."""
    write(METADATA / "only", "moved")
    write(METADATA / "older", "old", time=1e9)
    write(METADATA / "newer", "new", time=2e9)
    write(KEPT_METADATA / "older", "new", time=2e9)
    write(KEPT_METADATA / "newer", "old", time=1e9)
    keep_metadata_in_results(process())
    assert METADATA.is_symlink()
    contents = {path.name: path.read_text() for path in KEPT_METADATA.iterdir()}
    assert contents == {"only": "moved", "older": "new", "newer": "new"}


def test_existing_outputs_without_metadata_are_refused(folder):
    outputs = ["results/one/a.tsv", "results/one/b.tsv"]
    check_metadata(process(), "results/one", outputs)
    write(folder / outputs[1])
    with pytest.raises(UserError, match=r"results/one: results/\.snakemake-metadata has no meta"):
        check_metadata(process(), "results/one", outputs)
    check_metadata(process(needs_metadata=False), "results/one", outputs)


@pytest.mark.parametrize("kind", [0, 1], ids=["metadata", "incomplete"])
def test_metadata_about_one_output_are_enough(folder, kind):
    outputs = ["results/one/a.tsv", "results/one/b.tsv"]
    for output in outputs:
        write(folder / output)
    write(folder / record_files(outputs[1])[kind])
    assert [has_metadata(output) for output in outputs] == [False, True]
    check_metadata(process(), "results/one", outputs)
