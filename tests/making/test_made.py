import json
import os
import shutil
from pathlib import Path

import pytest

from gigatile.errors import UserError
from gigatile.files import fingerprint, sha256_of
from gigatile.making.made import content_of, fault_of, note_of, stall_of, write_note


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run with two files and a folder of one stage."""
    (tmp_path / "tiles").mkdir()
    (tmp_path / "tiles/S1.json").write_text('{"a": 1}')
    (tmp_path / "tiles/S1.jpg").write_bytes(b"a picture")
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages/one.html").write_text("a page")
    return tmp_path


@pytest.fixture
def slide(run: Path) -> Path:
    path = run / "S1.svs"
    path.write_bytes(b"a slide")
    return path


@pytest.fixture
def note(run: Path, slide: Path) -> Path:
    path = note_of(run, "tile", "S1.5")
    outputs = [run / "tiles/S1.json", run / "tiles/S1.jpg", run / "pages"]
    write_note(path, outputs, [slide])
    return path


def test_a_note_names_each_file_by_its_place_in_the_run(run, slide, note):
    assert note == run / "made/tile/S1.5.json"
    noted = json.loads(note.read_text())
    assert noted == {
        "outputs": {
            name: {"bytes": (run / name).stat().st_size, "sha256": sha256_of(run / name)}
            | ({"modified_ns": (run / name).stat().st_mtime_ns} if name[-5:] == ".json" else {})
            for name in ("pages/one.html", "tiles/S1.jpg", "tiles/S1.json")
        },
        "source": {
            "bytes": 7,
            "modified_ns": slide.stat().st_mtime_ns,
            "fingerprint": fingerprint(slide),
        },
    }
    assert fault_of(note) == ""


def test_what_stalled_is_tried_again_with_a_higher_limit(run, slide):
    state, note = run / "tiles/S1.json", note_of(run, "tile", "S1")
    assert stall_of(note, 10) == ""
    write_note(note, [state], [slide], state=state)
    assert stall_of(note, 10) == ""
    state.write_text('{"stalled_minutes": 5}')
    write_note(note, [state], [slide], state=state)
    assert [stall_of(note, limit) for limit in (0.1, 5)] == ["", ""]
    told = "stalled: nothing came of it for 5 minutes; 5.5 are allowed now"
    assert stall_of(note, 5.5) == told
    content_of([slide], note, update=True)
    assert stall_of(note, 5.5) == told
    note.write_text("damaged")
    assert stall_of(note, 5.5) == ""


def test_a_note_that_is_missing_is_a_fault_where_there_are_others(run, note):
    missing = note_of(run, "tile", "S2")
    assert fault_of(missing) == f"missing: {missing}"
    shutil.rmtree(run / "made")
    assert fault_of(missing) == "", "of an earlier release"


def test_what_is_not_there_cannot_be_noted(run):
    with pytest.raises(FileNotFoundError):
        write_note(note_of(run, "tile", "S2"), [run / "tiles/S2.json"])
    assert not (run / "made").exists()


@pytest.mark.parametrize("name", ["tiles/S1.json", "tiles/S1.jpg", "pages/one.html"])
def test_a_file_that_is_missing_or_has_another_size_is_seen(run, note, name):
    path = run / name
    content = path.read_bytes()
    path.write_bytes(content + b".")
    assert fault_of(note) == f"damaged: {path}"
    path.unlink()
    assert fault_of(note) == f"missing: {path}"
    path.write_bytes(content)
    assert fault_of(note) == ""


def test_the_content_of_a_table_counts_where_it_was_written_later(run, note):
    path = run / "tiles/S1.json"
    path.write_text('{"a": 2}')
    later = note.stat().st_mtime_ns + 1
    os.utime(path, ns=(later, later))
    assert fault_of(note) == f"damaged: {path}"
    path.write_text('{"a": 1}')
    os.utime(path, ns=(later, later))
    assert fault_of(note) == ""


@pytest.mark.parametrize("of_note", [1e9, 4e9])
@pytest.mark.parametrize("of_table", [1e9, 2e9, 4e9])
def test_no_clock_hides_damage(run, note, of_note, of_table):
    """The note may be from the future, and an old table may be restored with its old time."""
    path = run / "tiles/S1.json"
    path.write_text('{"a": 2}')
    os.utime(path, (of_table, of_table))
    os.utime(note, (of_note, of_note))
    assert fault_of(note) == f"damaged: {path}"


def test_a_table_with_its_noted_time_is_not_read(run, note):
    """Also if a copy has kept whole seconds only."""
    path = run / "tiles/S1.json"
    made = path.stat().st_mtime_ns
    path.write_text('{"a": 2}')
    for time in (made, made // 10**9 * 10**9):
        os.utime(path, ns=(time, time))
        assert fault_of(note) == ""
    # A note of an earlier release has no time.
    noted = json.loads(note.read_text())
    del noted["outputs"]["tiles/S1.json"]["modified_ns"]
    note.write_text(json.dumps(noted))
    assert fault_of(note) == f"damaged: {path}"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"outputs": [1]}', '{"outputs": {"a": 1}}'])
def test_a_damaged_note_is_a_fault(note, text):
    note.write_text(text)
    assert fault_of(note) == f"damaged: {note}"


def test_the_tiles_may_be_put_away_and_nothing_else(run, note):
    shutil.rmtree(run / "tiles")
    assert fault_of(note) == ""
    shutil.rmtree(run / "pages")
    assert fault_of(note) == f"missing: {run}/pages/one.html"


def test_a_state_of_a_training_may_be_put_away_but_not_be_damaged(run):
    state, note = run / "segments/0004.npz", note_of(run, "train", "0004")
    state.parent.mkdir()
    state.write_bytes(b"a state")
    write_note(note, [state])
    state.write_bytes(b"half")
    assert fault_of(note) == f"damaged: {state}"
    state.unlink()
    assert fault_of(note) == ""


# --- The slide's content


def changed(path: Path) -> None:
    seen = path.stat()
    path.write_bytes(b"a slipe")
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def test_a_slide_of_the_same_size_and_time_is_not_read(slide, note):
    before = fingerprint(slide)
    changed(slide)
    assert content_of([slide], note) == before
    slide.unlink()
    assert content_of([slide], note) == before, "where it is not there it counts as it was"


def test_a_slide_with_another_time_is_read(slide, note):
    before, text = fingerprint(slide), note.read_text()
    os.utime(slide, (1e9, 1e9))
    assert content_of([slide], note) == before
    slide.write_bytes(b"a slipe")
    assert content_of([slide], note) == fingerprint(slide) != before
    assert content_of([slide], note, update=True) == fingerprint(slide)
    assert note.read_text() == text, "it was made from another one"


def test_a_new_time_of_the_same_content_can_be_noted(slide, note):
    before = fingerprint(slide)
    os.utime(slide, (1e9, 1e9))
    assert content_of([slide], note, update=True) == before
    changed(slide)
    assert content_of([slide], note) == before, "it is not read again"


def test_without_a_note_a_slide_is_read(run, slide):
    assert content_of([slide], note_of(run, "tile", "S2")) == fingerprint(slide)
    missing = content_of([run / "none.svs"], note_of(run, "tile", "S2"))
    assert missing == "No such file or directory"


def test_a_slide_that_cannot_be_read_is_told_by_the_reason(run, note):
    """A folder, for instance; the job has recorded why it could not be cut."""
    folder, bad = run / "tiles", note_of(run, "tile", "bad")
    assert content_of([folder], note) == "Is a directory"
    write_note(bad, [], [folder])
    assert content_of([folder], bad) == "Is a directory"
    assert fault_of(bad) == ""


def test_a_job_that_ended_meanwhile_keeps_its_note(slide, note, monkeypatch):
    os.utime(slide, (1e9, 1e9))
    of_the_job = note.read_text().replace('"bytes": 7', '"bytes": 8')

    def read_and_wait(path):
        note.write_text(of_the_job)
        return fingerprint(path)

    monkeypatch.setattr("gigatile.making.made.fingerprint_of", read_and_wait)
    content_of([slide], note, update=True)
    assert note.read_text() == of_the_job


# --- Shards


def test_the_shards_of_a_manifest_are_noted_as_it_names_them(run):
    (run / "shards").mkdir()
    (run / "shards/a.tfrecord").write_bytes(b"records")
    (run / "shards/a.index.npy").write_bytes(b"index")
    manifest = run / "shards/manifest.json"
    shard = {
        "file": "a.tfrecord",
        "bytes": 7,
        "sha256": "of the records",
        "index": "a.index.npy",
        "index_sha256": "of the index",
    }
    manifest.write_text(json.dumps({"splits": {"train": {"shards": [shard]}}}))
    note = note_of(run, "write_shards")
    write_note(note, [manifest], manifest=manifest)
    assert note == run / "made/write_shards.json"
    noted = json.loads(note.read_text())["outputs"]
    assert noted["shards/a.tfrecord"] == {"bytes": 7, "sha256": "of the records"}
    assert noted["shards/a.index.npy"] == {"bytes": 5, "sha256": "of the index"}
    assert noted["shards/manifest.json"]["sha256"] == sha256_of(manifest)
    manifest.unlink()
    with pytest.raises(UserError, match="no such file"):
        write_note(note, [], manifest=manifest)


def test_a_slide_that_hangs_is_not_waited_for(tmp_path, monkeypatch):
    """A pipe that nobody writes into; so does a file on a disk that does not answer."""
    monkeypatch.setattr("gigatile.making.made.ANSWER_SECONDS", 0.2)
    pipe = tmp_path / "s.svs"
    os.mkfifo(pipe)
    note = tmp_path / "made/tile/S1.json"
    write_note(note, [], [pipe])
    assert content_of([pipe], note) == "it does not answer"
    # And not asked again while nothing changes.
    monkeypatch.setattr("gigatile.making.made.fingerprint_of", lambda path: 1 / 0)
    assert content_of([pipe], note) == "it does not answer"
    pipe.unlink()
    pipe.write_bytes(b"a slide")
    monkeypatch.setattr("gigatile.making.made.fingerprint_of", lambda path: "another")
    assert content_of([pipe], note) == "another"
