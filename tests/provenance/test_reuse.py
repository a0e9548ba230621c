"""Outputs of another run are linked if everything is the same, and otherwise nothing appears."""

import json
import os
import shutil
from pathlib import Path

import pytest

from gigatile.files import fingerprint, write_text
from gigatile.provenance.output_records import (
    digest_of,
    outputs_changed,
    read_output_record,
    record_path,
    write_output_record,
)
from gigatile.provenance.packs import pack_records
from gigatile.provenance.reuse import forget_made_with, is_done, link_outputs

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
        [slide],
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
    "state of another kind": (_no_state, "its state is damaged there"),
    "failed slide": (_failed, "it failed there"),
    "fewer outputs": (_fewer_outputs, "other outputs"),
    "slide replaced while it was tiled": (_replaced_during_the_job, "made from slide.svs"),
    "another file name": (_other_file_name, "made from scan.svs"),
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
    assert "is not the file that was read there" in link(run, other, slide)
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


# --- A job that is repeated


def done(run: Path, slide: Path, made_with=MADE_WITH) -> bool:
    outputs = [run / "tiles" / name for name in NAMES]
    record = record_path(run, "tile", "S1")
    return is_done(record, outputs, [slide], made_with, run / "tiles/S1.json")


def test_a_job_is_done_once_its_outputs_are_recorded(run, slide):
    assert not done(run, slide)
    write_outputs(run, slide)
    assert not done(run, slide)
    record_outputs(run, slide)
    assert done(run, slide)
    pack_records(run / "provenance/tile", ["S1"])
    assert not record_path(run, "tile", "S1").exists()
    assert done(run, slide)


def test_other_code_another_slide_a_failed_slide_and_a_forced_job_are_not_done(run, slide):
    write_outputs(run, slide)
    record_outputs(run, slide)
    assert not done(run, slide, ("other code", *MADE_WITH[1:]))
    for packed in (False, True):
        if packed:
            record_outputs(run, slide)
            pack_records(run / "provenance/tile", ["S1"])
        forget_made_with(record_path(run, "tile", "S1"))
        assert not done(run, slide)
    record_outputs(run, slide)
    slide.write_bytes(b"another slide")
    assert not done(run, slide)
    record_outputs(run, slide)  # it was replaced while it was tiled
    assert not done(run, slide)
    write_outputs(run, slide, state="failed")
    record_outputs(run, slide)
    assert not done(run, slide)


@pytest.fixture
def case(tmp_path: Path) -> list[Path]:
    """Return the files of a case; two have the same name."""
    paths = [tmp_path / "a/t1.nii", tmp_path / "b/t1.nii", tmp_path / "t2.nii"]
    for number, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes([number]))
    return paths


def prepare_case(run: Path, case: list[Path], **changes) -> None:
    """Write and record the outputs of the job of a case."""
    (run / "volumes").mkdir(parents=True, exist_ok=True)
    sources = {
        str(number): {"name": path.name, "fingerprint": fingerprint(path)}
        for number, path in enumerate(case)
    }
    state = {"state": "prepared", "sources": sources} | changes
    (run / "volumes/C1.json").write_text(json.dumps(state))
    write_output_record(
        *(record_path(run, "prepare", "C1"), [run / "volumes/C1.json"], case),
        *(None, run / "volumes/C1.json", MADE_WITH),
    )


def case_is_done(run: Path, case: list[Path]) -> bool:
    state = run / "volumes/C1.json"
    return is_done(record_path(run, "prepare", "C1"), [state], case, MADE_WITH, state)


def test_a_job_of_a_case_is_done_while_its_files_are_the_same(run, case):
    assert not case_is_done(run, case)
    prepare_case(run, case)
    assert case_is_done(run, case)
    prepare_case(run, case, state="failed")
    assert not case_is_done(run, case)
    prepare_case(run, case)
    for changed in (case[:2], [*case, case[0]], [], [case[1], case[0], case[2]]):
        assert not case_is_done(run, changed)
    for path in case:
        content = path.read_bytes()
        path.write_bytes(b"other")
        assert not case_is_done(run, case)
        path.write_bytes(content)
        assert case_is_done(run, case)
    case[1].unlink()
    assert not case_is_done(run, case)


@pytest.mark.parametrize("number", range(3))
def test_a_file_of_a_case_that_was_replaced_during_the_job_is_read_again(run, case, number):
    """The state has what was read, and the record what was there at the end."""
    read = {
        str(position): {"name": path.name, "fingerprint": fingerprint(path)}
        for position, path in enumerate(case)
    }
    case[number].write_bytes(b"replaced")
    prepare_case(run, case, sources=read)
    assert not case_is_done(run, case)


@pytest.mark.parametrize("sources", [[], {}, None, "x", {"0": {}}, {"0": None}])
def test_a_state_with_damaged_sources_is_not_done(run, case, sources):
    prepare_case(run, case, sources=sources)
    assert not case_is_done(run, case)


def prepare_part(run: Path, images: list[list[Path]], read: dict[Path, str] | None = None) -> None:
    """Write and record the outputs of the job of a part: of each image, its files.

    Args:
        read: fingerprints of files that were different when they were read.
    """
    (run / "images").mkdir(parents=True, exist_ok=True)
    members = [
        {
            "state": "failed" if number == 0 else "prepared",
            "sources": {
                column: {
                    "name": path.name,
                    "fingerprint": (read or {}).get(path) or fingerprint(path),
                }
                for column, path in zip(("path", "annotations"), files, strict=True)
            },
        }
        for number, files in enumerate(images)
    ]
    state = run / "images/train-0000.json"
    state.write_text(json.dumps({"part": "train-0000", "images": members}))
    sources = sorted({path for files in images for path in files})
    write_output_record(
        *(record_path(run, "prepare", "train-0000"), [state], sources), *(None, state, MADE_WITH)
    )


def part_is_done(run: Path, images: list[list[Path]]) -> bool:
    state = run / "images/train-0000.json"
    sources = sorted({path for files in images for path in files})
    return is_done(record_path(run, "prepare", "train-0000"), [state], sources, MADE_WITH, state)


def test_a_job_of_images_is_done_while_their_files_are_the_same(run, case):
    """The first image is a bad one; all images share a file with annotations."""
    images = [[case[0], case[2]], [case[1], case[2]]]
    assert not part_is_done(run, images)
    prepare_part(run, images)
    assert part_is_done(run, images)
    assert not part_is_done(run, images[:1])
    for path in case:
        content = path.read_bytes()
        path.write_bytes(b"other")
        assert not part_is_done(run, images)
        path.write_bytes(content)
        # It was another one when an image was read, and this one at the end.
        prepare_part(run, images, read={path: "blake2b-16x65536:00"})
        assert not part_is_done(run, images)
        prepare_part(run, images)
        assert part_is_done(run, images)


@pytest.mark.parametrize("name", NAMES)
def test_a_job_with_a_damaged_output_is_not_done(run, slide, name):
    write_outputs(run, slide)
    record_outputs(run, slide)
    content = (run / "tiles" / name).read_bytes()
    (run / "tiles" / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert not done(run, slide)
    (run / "tiles" / name).unlink()
    assert not done(run, slide)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"outputs": {}}', "null"])
def test_a_job_with_a_damaged_record_is_not_done(run, slide, text):
    write_outputs(run, slide)
    write_text(record_path(run, "tile", "S1"), text)
    assert not done(run, slide)
    (run / "provenance/tile.jsonl").write_text(f'"S1"\t{text}\n')
    record_path(run, "tile", "S1").unlink()
    assert not done(run, slide)


def test_command(run, other, slide, command, tmp_path):
    script = tmp_path / "tile.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nrun, slide = map(Path, sys.argv[1:])\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_reuse import write_outputs\nwrite_outputs(run, slide)\nprint('tiled')\n"
    )
    options = [
        *("--record", record_path(run, "tile", "S1"), "--source", slide),
        *("--state", run / "tiles/S1.json", "--outputs"),
        *(run / "tiles" / name for name in NAMES),
        *("--made-with", *MADE_WITH),
    ]
    work = ("--command", script, run, slide)

    def shown(*more):
        completed = command("run_recorded.py", *options, *more)
        assert completed.returncode == 0 and not completed.stderr, completed.stderr
        return completed.stdout

    assert shown("--reuse", other, *work) == f"reused from {other}\n"
    record = read_output_record(record_path(run, "tile", "S1"))
    assert record is not None and record.seconds is None
    assert shown("--reuse", other, *work) == shown(*work) == "done before; nothing to do\n"
    forget_made_with(record_path(run, "tile", "S1"))
    assert shown(*work) == "tiled\n"
    record = read_output_record(record_path(run, "tile", "S1"))
    assert record is not None and record.seconds is not None and record.peak_mb > 10
    options[-1] = "other code"
    expected = f"not reused from {other}: made with other code or settings\ntiled\n"
    assert shown("--reuse", other, *work) == expected
    # A command that fails leaves the record as it was.
    script.write_text("raise SystemExit(3)")
    options[-1] = "more code"
    assert command("run_recorded.py", *options, *work).returncode == 3
    assert read_output_record(record_path(run, "tile", "S1")).made_with == digest_of(
        (*MADE_WITH[:-1], "other code")
    )


def test_what_the_command_reads_is_part_of_the_record(run, command, tmp_path):
    """A file that changes during the command makes the job run again."""
    model, state, script = tmp_path / "model", run / "scores/S1.json", tmp_path / "score.py"
    state.parent.mkdir(parents=True)
    model.write_text("first")
    script.write_text(
        "import sys\nfrom pathlib import Path\nmodel, state = map(Path, sys.argv[1:])\n"
        'state.write_text(\'{"state": "scored", "by": "\' + model.read_text() + \'"}\')\n'
        "if model.read_text() == 'changing': model.write_text('changed')\n"
    )
    line = [
        *("--record", record_path(run, "score", "S1"), "--outputs", state, "--reads", model),
        *("--state", state, "--made-with", "code", "--command", script, model, state),
    ]

    def is_repeated() -> bool:
        completed = command("run_recorded.py", *line)
        assert completed.returncode == 0, completed.stderr
        return "done before" not in completed.stdout

    assert [is_repeated(), is_repeated()] == [True, False]
    model.write_text("other")
    assert [is_repeated(), is_repeated()] == [True, False]
    model.write_text("changing")
    assert [is_repeated(), is_repeated(), is_repeated()] == [True, True, False]
    assert json.loads(state.read_text())["by"] == "changed"
