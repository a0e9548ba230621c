import json
import os
import shutil
from pathlib import Path

import pytest

from gigatile.errors import UserError
from gigatile.files import fingerprint, sha256_of
from gigatile.json_models import write_model
from gigatile.provenance.output_records import (
    outputs_changed,
    record_path,
    source_fingerprint,
    stall_limit_raised,
    write_output_record,
)
from gigatile.records.manifest import Manifest, Shard, ShardedSplit


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run with two files and a folder of one stage."""
    (tmp_path / "tiles").mkdir()
    (tmp_path / "tiles/S1.json").write_text('{"a": 1}')
    (tmp_path / "tiles/S1.jpg").write_bytes(b"a picture")
    (tmp_path / "tiles/S1.tfrecord").write_bytes(b"tiles")
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages/one.html").write_text("a page")
    return tmp_path


@pytest.fixture
def slide(run: Path) -> Path:
    path = run / "S1.svs"
    path.write_bytes(b"a slide")
    return path


@pytest.fixture
def record(run: Path, slide: Path) -> Path:
    path = record_path(run, "tile", "S1.5")
    tiles = [run / "tiles" / name for name in ("S1.json", "S1.jpg", "S1.tfrecord")]
    outputs = [*tiles, run / "pages"]
    write_output_record(path, outputs, [slide])
    return path


def test_record_lists_each_file_by_its_path_in_the_run(run, slide, record):
    assert record == run / "provenance/tile/S1.5.json"
    content = json.loads(record.read_text())
    assert content == {
        "outputs": {
            name: {"bytes": (run / name).stat().st_size, "sha256": sha256_of(run / name)}
            | ({"modified_ns": (run / name).stat().st_mtime_ns} if name[-5:] == ".json" else {})
            for name in ("pages/one.html", "tiles/S1.jpg", "tiles/S1.json", "tiles/S1.tfrecord")
        },
        "source": {
            "bytes": 7,
            "modified_ns": slide.stat().st_mtime_ns,
            "fingerprint": fingerprint(slide),
        },
    }
    assert outputs_changed(record) == ""


def test_stalled_slide_is_tried_again_with_a_higher_limit(run, slide):
    state, record = run / "tiles/S1.json", record_path(run, "tile", "S1")
    assert stall_limit_raised(record, 10) == ""
    write_output_record(record, [state], [slide], state=state)
    assert stall_limit_raised(record, 10) == ""
    state.write_text('{"stalled_minutes": 5}')
    write_output_record(record, [state], [slide], state=state)
    assert [stall_limit_raised(record, limit) for limit in (0.1, 5)] == ["", ""]
    reason = "stalled: no progress for 5 minutes; the limit is 5.5 now"
    assert stall_limit_raised(record, 5.5) == reason
    source_fingerprint([slide], record, update=True)
    assert stall_limit_raised(record, 5.5) == reason
    record.write_text("damaged")
    assert stall_limit_raised(record, 5.5) == ""


def test_missing_record_is_a_fault_if_others_exist(run, record):
    missing = record_path(run, "tile", "S2")
    assert outputs_changed(missing) == f"missing: {missing}"
    shutil.rmtree(run / "provenance")
    assert outputs_changed(missing) == "", "results of an earlier release"


def test_missing_output_cannot_be_recorded(run):
    with pytest.raises(FileNotFoundError):
        write_output_record(record_path(run, "tile", "S2"), [run / "tiles/S2.json"])
    assert not (run / "provenance").exists()


@pytest.mark.parametrize("name", ["tiles/S1.json", "tiles/S1.jpg", "pages/one.html"])
def test_missing_file_or_other_size_is_detected(run, record, name):
    path = run / name
    content = path.read_bytes()
    path.write_bytes(content + b".")
    assert outputs_changed(record) == f"damaged: {path}"
    path.unlink()
    assert outputs_changed(record) == f"missing: {path}"
    path.write_bytes(content)
    assert outputs_changed(record) == ""


def test_table_with_a_later_time_is_compared_by_content(run, record):
    path = run / "tiles/S1.json"
    path.write_text('{"a": 2}')
    later = record.stat().st_mtime_ns + 1
    os.utime(path, ns=(later, later))
    assert outputs_changed(record) == f"damaged: {path}"
    path.write_text('{"a": 1}')
    os.utime(path, ns=(later, later))
    assert outputs_changed(record) == ""


@pytest.mark.parametrize("record_time", [1e9, 4e9])
@pytest.mark.parametrize("table_time", [1e9, 2e9, 4e9])
def test_wrong_clock_hides_no_damage(run, record, record_time, table_time):
    """The record may be from the future, and a table may be restored with an old time."""
    path = run / "tiles/S1.json"
    path.write_text('{"a": 2}')
    os.utime(path, (table_time, table_time))
    os.utime(record, (record_time, record_time))
    assert outputs_changed(record) == f"damaged: {path}"


def test_table_with_its_recorded_time_is_not_read(run, record):
    """Nor one whose time a copy has truncated to seconds."""
    path = run / "tiles/S1.json"
    recorded = path.stat().st_mtime_ns
    path.write_text('{"a": 2}')
    for time in (recorded, recorded // 10**9 * 10**9):
        os.utime(path, ns=(time, time))
        assert outputs_changed(record) == ""
    # A record of an earlier release has no time.
    content = json.loads(record.read_text())
    del content["outputs"]["tiles/S1.json"]["modified_ns"]
    record.write_text(json.dumps(content))
    assert outputs_changed(record) == f"damaged: {path}"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"outputs": [1]}', '{"outputs": {"a": 1}}'])
def test_damaged_record_is_a_fault(record, text):
    record.write_text(text)
    assert outputs_changed(record) == f"damaged: {record}"


def test_only_folders_of_records_may_be_missing(run, record):
    (run / "tiles/S1.tfrecord").unlink()
    assert outputs_changed(record) == f"missing: {run}/tiles/S1.tfrecord"
    shutil.rmtree(run / "tiles")
    assert outputs_changed(record) == ""
    shutil.rmtree(run / "pages")
    assert outputs_changed(record) == f"missing: {run}/pages/one.html"


def test_training_state_may_be_missing_but_not_damaged(run):
    state, record = run / "segments/0004.npz", record_path(run, "train", "0004")
    state.parent.mkdir()
    state.write_bytes(b"a state")
    write_output_record(record, [state])
    state.write_bytes(b"half")
    assert outputs_changed(record) == f"damaged: {state}"
    state.unlink()
    assert outputs_changed(record) == ""


# --- The content of a slide


def changed(path: Path) -> None:
    seen = path.stat()
    path.write_bytes(b"a slipe")
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def test_slide_with_the_same_size_and_time_is_not_read(slide, record):
    before = fingerprint(slide)
    changed(slide)
    assert source_fingerprint([slide], record) == before
    slide.unlink()
    assert source_fingerprint([slide], record) == before, "a missing slide counts as unchanged"


def test_slide_with_another_time_is_read(slide, record):
    before, text = fingerprint(slide), record.read_text()
    os.utime(slide, (1e9, 1e9))
    assert source_fingerprint([slide], record) == before
    slide.write_bytes(b"a slipe")
    assert source_fingerprint([slide], record) == fingerprint(slide) != before
    assert source_fingerprint([slide], record, update=True) == fingerprint(slide)
    assert record.read_text() == text, "the outputs come from another slide"


def test_new_time_of_the_same_content_is_recorded(slide, record):
    before = fingerprint(slide)
    os.utime(slide, (1e9, 1e9))
    assert source_fingerprint([slide], record, update=True) == before
    changed(slide)
    assert source_fingerprint([slide], record) == before, "it is not read again"


def test_slide_without_record_is_read(run, slide):
    assert source_fingerprint([slide], record_path(run, "tile", "S2")) == fingerprint(slide)
    missing = source_fingerprint([run / "none.svs"], record_path(run, "tile", "S2"))
    assert missing == "No such file or directory"


def test_unreadable_slide_is_identified_by_the_reason(run, record):
    """A folder, for example: the job has recorded why it could not be tiled."""
    folder, bad = run / "tiles", record_path(run, "tile", "bad")
    assert source_fingerprint([folder], record) == "Is a directory"
    write_output_record(bad, [], [folder])
    assert source_fingerprint([folder], bad) == "Is a directory"
    assert outputs_changed(bad) == ""


def test_record_that_a_job_writes_meanwhile_is_kept(slide, record, monkeypatch):
    os.utime(slide, (1e9, 1e9))
    job_record = record.read_text().replace('"bytes": 7', '"bytes": 8')

    def read_and_wait(path):
        record.write_text(job_record)
        return fingerprint(path)

    monkeypatch.setattr("gigatile.provenance.output_records.fingerprint_of", read_and_wait)
    source_fingerprint([slide], record, update=True)
    assert record.read_text() == job_record


# --- Shards


def test_shards_are_recorded_with_the_checksums_of_the_manifest(run):
    (run / "shards").mkdir()
    (run / "shards/a.tfrecord").write_bytes(b"records")
    (run / "shards/a.index.npy").write_bytes(b"index")
    manifest = run / "shards/manifest.json"
    shard = Shard(
        file="a.tfrecord",
        records=1,
        bytes=7,
        sha256="of the records",
        index="a.index.npy",
        index_sha256="of the index",
    )
    train = ShardedSplit(records=1, unit="slide", members=1, by_label={"x": 1}, shards=[shard])
    write_model(manifest, Manifest(classes=["x"], splits={"train": train}))
    record = record_path(run, "write_shards")
    write_output_record(record, [manifest], manifest=manifest)
    assert record == run / "provenance/write_shards.json"
    content = json.loads(record.read_text())["outputs"]
    assert content["shards/a.tfrecord"] == {"bytes": 7, "sha256": "of the records"}
    assert content["shards/a.index.npy"] == {"bytes": 5, "sha256": "of the index"}
    assert content["shards/manifest.json"]["sha256"] == sha256_of(manifest)
    manifest.unlink()
    with pytest.raises(UserError, match="no such file"):
        write_output_record(record, [], manifest=manifest)


def test_hanging_slide_is_abandoned(tmp_path, monkeypatch):
    """A pipe without a writer behaves like a file on a disk that hangs."""
    monkeypatch.setattr("gigatile.provenance.output_records.READ_SECONDS", 0.2)
    pipe = tmp_path / "s.svs"
    os.mkfifo(pipe)
    record = tmp_path / "provenance/tile/S1.json"
    write_output_record(record, [], [pipe])
    assert source_fingerprint([pipe], record) == "no data within 0.2 s"
    # It is not read again while its size and time stay the same.
    monkeypatch.setattr("gigatile.provenance.output_records.fingerprint_of", lambda path: 1 / 0)
    assert source_fingerprint([pipe], record) == "no data within 0.2 s"
    pipe.unlink()
    pipe.write_bytes(b"a slide")
    monkeypatch.setattr("gigatile.provenance.output_records.fingerprint_of", lambda path: "another")
    assert source_fingerprint([pipe], record) == "another"
