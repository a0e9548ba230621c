"""Outputs of another run are linked if everything is the same, and otherwise nothing appears."""

import json
import os
import shutil
from pathlib import Path

import pytest

from gigatile.files import fingerprint, write_text
from gigatile.provenance.output_records import (
    outputs_changed,
    read_output_record,
    record_path,
    write_output_record,
)
from gigatile.provenance.reuse import link_outputs

MADE_WITH = ("code", '{"size": 224}', "--mpp 0.5")
NAMES = ("S1.tfrecord", "S1.json", "S1.jpg")


def write_outputs(run: Path, slide: Path, **changes) -> None:
    (run / "tiles").mkdir(parents=True, exist_ok=True)
    (run / "tiles/S1.tfrecord").write_bytes(b"tiles" * 100)
    (run / "tiles/S1.jpg").write_bytes(b"a picture")
    source = {"name": slide.name, "fingerprint": fingerprint(slide)}
    state = {"state": "tiled", "source": source} | changes
    (run / "tiles/S1.json").write_text(json.dumps(state))


def record_outputs(run: Path, slide: Path, made_with=MADE_WITH, names=NAMES) -> None:
    write_output_record(
        record_path(run, "tile", "S1"),
        [run / "tiles" / name for name in names],
        [slide],
        state=run / "tiles/S1.json",
        made_with=made_with,
    )


@pytest.fixture
def slide(tmp_path: Path) -> Path:
    path = tmp_path / "slide.svs"
    path.write_bytes(b"a slide")
    return path


@pytest.fixture
def other(tmp_path: Path, slide: Path) -> Path:
    """Return a run that has tiled the slide."""
    run = tmp_path / "results/other"
    write_outputs(run, slide)
    record_outputs(run, slide)
    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "results/this"


def link(run: Path, other: Path, slide: Path, made_with=MADE_WITH) -> str:
    return link_outputs(
        other,
        record_path(run, "tile", "S1"),
        [run / "tiles" / name for name in NAMES],
        slide,
        made_with,
        run / "tiles/S1.json",
    )


def files_of(run: Path) -> set[str]:
    return {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}


def test_outputs_are_hard_links(run, other, slide):
    assert link(run, other, slide) == ""
    assert files_of(run) == {f"tiles/{name}" for name in NAMES}
    assert all((run / "tiles" / name).samefile(other / "tiles" / name) for name in NAMES)
    record_outputs(run, slide)
    assert outputs_changed(record_path(run, "tile", "S1")) == ""
    records = [read_output_record(record_path(folder, "tile", "S1")) for folder in (run, other)]
    assert records[0] == records[1]  # a third run can reuse this one


def test_linking_again_leaves_no_file_behind(run, other, slide):
    assert link(run, other, slide) == link(run, other, slide) == ""
    assert files_of(run) == {f"tiles/{name}" for name in NAMES}


def test_writing_an_output_again_does_not_change_the_other_run(run, other, slide):
    link(run, other, slide)
    write_text(run / "tiles/S1.json", "{}")
    assert outputs_changed(record_path(other, "tile", "S1")) == ""


def damage(path: Path, keep_time: bool = True) -> None:
    content, status = bytearray(path.read_bytes()), path.stat()
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    if keep_time:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _older_release(other: Path) -> None:
    path = record_path(other, "tile", "S1")
    record = json.loads(path.read_text())
    del record["made_with"]
    path.write_text(json.dumps(record))


def _failed(other: Path) -> None:
    slide = other.parents[1] / "slide.svs"
    write_outputs(other, slide, state="failed")
    record_outputs(other, slide)


def _other_file_name(other: Path) -> None:
    slide = other.parents[1] / "slide.svs"
    write_outputs(other, slide, source={"name": "scan.svs", "fingerprint": fingerprint(slide)})
    record_outputs(other, slide)


def _replaced_during_the_job(other: Path) -> None:
    slide = other.parents[1] / "slide.svs"
    slide.write_bytes(b"another")
    record_outputs(other, slide)  # after the tiles


def _no_state(other: Path) -> None:
    (other / "tiles/S1.json").write_text("{}")
    record_outputs(other, other.parents[1] / "slide.svs")


def _fewer_outputs(other: Path) -> None:
    record_outputs(other, other.parents[1] / "slide.svs", names=NAMES[:2])


FAULTS = {
    "no run": (shutil.rmtree, "does not exist"),
    "no record": (lambda other: record_path(other, "tile", "S1").unlink(), "does not exist"),
    "damaged record": (lambda other: damage(record_path(other, "tile", "S1")), ""),
    "truncated record": (lambda other: record_path(other, "tile", "S1").write_text("{"), "damaged"),
    "record of an older release": (_older_release, "of a release that did not record"),
    "damaged tiles": (lambda other: damage(other / "tiles/S1.tfrecord"), "damaged: "),
    "truncated tiles": (lambda other: (other / "tiles/S1.tfrecord").write_bytes(b""), "damaged: "),
    "damaged picture": (lambda other: damage(other / "tiles/S1.jpg"), "damaged: "),
    "no tiles": (lambda other: (other / "tiles/S1.tfrecord").unlink(), "No such file"),
    "no state": (lambda other: (other / "tiles/S1.json").unlink(), "no such file"),
    "state is not JSON": (lambda other: (other / "tiles/S1.json").write_text("{"), "not JSON"),
    "state of another kind": (_no_state, "the state of the slide is damaged"),
    "failed slide": (_failed, "the slide failed there"),
    "fewer outputs": (_fewer_outputs, "other outputs"),
    "slide replaced while it was tiled": (_replaced_during_the_job, "is not the slide"),
    "another file name": (_other_file_name, "the slide's file is scan.svs there"),
}


@pytest.mark.parametrize(("edit", "reason"), FAULTS.values(), ids=FAULTS)
def test_nothing_is_linked_from_a_faulty_run(run, other, slide, edit, reason):
    edit(other)
    answer = link(run, other, slide)
    assert answer
    assert reason in answer
    assert not files_of(run)


@pytest.mark.parametrize("changed", range(3))
def test_nothing_is_linked_with_other_code_or_settings(run, other, slide, changed):
    made_with = [*MADE_WITH]
    made_with[changed] += " "
    assert link(run, other, slide, made_with) == "made with other code or settings"
    assert not files_of(run)


def test_texts_cannot_be_shifted_between_the_options(run, other, slide):
    assert link(run, other, slide, ("".join(MADE_WITH), "", "")) != ""
    assert link(run, other, slide, (*MADE_WITH[:2], *MADE_WITH[2].split())) != ""


def test_nothing_is_linked_for_another_content_of_the_slide(run, other, slide):
    damage(slide)  # of the same size and time
    assert "is not the slide that was tiled there" in link(run, other, slide)
    slide.unlink()
    assert "No such file" in link(run, other, slide)
    assert not files_of(run)


def test_slide_that_cannot_be_read_does_not_hang_the_job(run, other, slide, monkeypatch):
    monkeypatch.setattr("gigatile.provenance.output_records.READ_SECONDS", 0.1)
    slide.unlink()
    os.mkfifo(slide)
    assert "no data within" in link(run, other, slide)


def test_protected_files_are_not_linked(run, other, slide, monkeypatch):
    """Snakemake would refuse to replace such an output of this run."""
    (other / "tiles/S1.jpg").chmod(0o444)
    # Root, as whom these tests may run, can write everything.
    monkeypatch.setattr(os, "access", lambda path, mode: bool(path.stat().st_mode & 0o200))
    assert "no permission to write" in link(run, other, slide)
    assert not files_of(run)


def test_file_is_linked_and_not_a_symbolic_link_to_it(run, other, slide, tmp_path):
    archive = tmp_path / "archive.tfrecord"
    tiles = other / "tiles/S1.tfrecord"
    tiles.rename(archive)
    tiles.symlink_to(archive)
    assert link(run, other, slide) == ""
    content = archive.read_bytes()
    archive.unlink()
    assert (run / "tiles/S1.tfrecord").read_bytes() == content


def test_leftovers_of_a_killed_job_are_removed(run, other, slide):
    (run / "tiles").mkdir(parents=True)
    (run / "tiles/.S1-abcdefgh.jpg").write_text("half")
    assert link(run, other, slide) == ""
    assert files_of(run) == {f"tiles/{name}" for name in NAMES}


def test_state_appears_last(run, other, slide, monkeypatch):
    appeared = []
    replace = Path.replace
    monkeypatch.setattr(
        Path, "replace", lambda path, to: appeared.append(to.name) or replace(path, to)
    )
    assert link(run, other, slide) == ""
    assert appeared[-1] == "S1.json"
    assert sorted(appeared) == sorted(NAMES)


def test_another_file_system_is_no_error(run, other, slide):
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == slide.stat().st_dev:
        pytest.skip("needs a second file system: /dev/shm")
    folder = memory / f"gigatile-{os.getpid()}"
    elsewhere = folder / "results/other"
    shutil.copytree(other, elsewhere)
    try:
        assert "cross-device" in link(run, elsewhere, slide)
    finally:
        shutil.rmtree(folder)
    assert not files_of(run)


def test_command(run, other, slide, command):
    options = [
        *("--record", record_path(run, "tile", "S1"), "--source", slide),
        *("--state", run / "tiles/S1.json", "--outputs"),
        *(run / "tiles" / name for name in NAMES),
    ]
    done = command("link_outputs.py", "--from", other, *options, "--made-with", *MADE_WITH)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"reused from {other}\n"
    done = command("link_outputs.py", "--from", other, *options, "--made-with", "other code")
    assert done.returncode == 1
    assert done.stdout == f"not reused from {other}: made with other code or settings\n"
    assert not done.stderr
