"""Packed records and logs: nothing is lost, the newest counts, and a damaged pack is noticed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gigatile.errors import UserError
from gigatile.provenance.output_records import (
    OutputRecord,
    is_recorded,
    outputs_changed,
    read_output_record,
    record_path,
    records_of,
    write_output_record,
)
from gigatile.provenance.packs import pack_logs, pack_records
from gigatile.provenance.verification import ExpectedOutput, verify

NAMES = ("S1", "S2.5", "ä", "==> S1.log <==")


def tile(run: Path, *names: str, content: str = "tiles") -> None:
    for name in names:
        output = run / f"tiles/{name}.json"
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(content)
        write_output_record(record_path(run, "tile", name), [output], seconds=1.5)
        log = run / f"logs/tile/{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"{name}: {content}\n")


def pack(run: Path, *names: str) -> None:
    pack_records(run / "provenance/tile", names)
    pack_logs(run / "logs/tile", names)


def records(run: Path) -> dict[str, OutputRecord | None]:
    return {name: read_output_record(record_path(run, "tile", name)) for name in NAMES}


def test_packed_records_are_those_of_the_files(tmp_path):
    tile(tmp_path, *NAMES)
    before = records(tmp_path)
    pack(tmp_path, *NAMES)
    assert not (tmp_path / "provenance/tile").exists()
    assert not (tmp_path / "logs/tile").exists()
    assert records(tmp_path) == before == records_of(tmp_path, "tile")
    assert all(not outputs_changed(record_path(tmp_path, "tile", name)) for name in NAMES)
    content = (tmp_path / "provenance/tile.jsonl").read_bytes()
    pack(tmp_path, *NAMES)  # again, with nothing new
    assert (tmp_path / "provenance/tile.jsonl").read_bytes() == content


def test_a_job_that_runs_again_replaces_its_record_and_its_log(tmp_path):
    tile(tmp_path, *NAMES)
    pack(tmp_path, *NAMES)
    tile(tmp_path, "S1", content="other tiles")
    after = records(tmp_path)
    assert after["S1"] != after["ä"]
    pack(tmp_path, *NAMES)
    assert records(tmp_path) == after
    log = (tmp_path / "logs/tile.log").read_text()
    assert log.count("S1: other tiles\n") == 1 and "S1: tiles\n" not in log
    assert "==> S2.5.log <==\nS2.5: tiles\n" in log


def test_rows_that_are_gone_leave_the_pack_and_files_of_other_jobs_stay(tmp_path):
    tile(tmp_path, "S1", "S2.5")
    pack(tmp_path, "S1", "S2.5")
    tile(tmp_path, "ä")
    pack(tmp_path, "S1")
    assert not is_recorded(record_path(tmp_path, "tile", "S2.5"))
    assert record_path(tmp_path, "tile", "ä").exists()
    assert (tmp_path / "logs/tile/ä.log").exists()
    assert set(records_of(tmp_path, "tile")) == {"S1", "ä"}


def test_an_output_that_changes_after_packing_is_noticed(tmp_path):
    tile(tmp_path, "S1", "S2.5")
    pack(tmp_path, "S1", "S2.5")
    expected = [ExpectedOutput(tmp_path / f"tiles/{name}.json", "tile") for name in ("S1", "S2.5")]
    assert verify(tmp_path, expected) == []
    (tmp_path / "tiles/S1.json").write_text("TILES")
    (tmp_path / "tiles/S2.5.json").unlink()
    assert "damaged" in outputs_changed(record_path(tmp_path, "tile", "S1"))
    assert "missing" in outputs_changed(record_path(tmp_path, "tile", "S2.5"))
    assert [finding.state for finding in verify(tmp_path, expected)] == ["damaged", "missing"]


@pytest.mark.parametrize(
    "text", [b"{", b'"S1"', b"S1\t{}\n", b"\xff\t{}", b'"S1"\t{}', b'["S1"]\t{}']
)
def test_a_damaged_pack_is_noticed_and_replaced(tmp_path, text):
    tile(tmp_path, "S1")
    pack(tmp_path, "S1")
    (tmp_path / "provenance/tile.jsonl").write_bytes(text)
    with pytest.raises(UserError, match="damaged"):
        read_output_record(record_path(tmp_path, "tile", "S1"))
    assert is_recorded(record_path(tmp_path, "tile", "S1"))
    assert outputs_changed(record_path(tmp_path, "tile", "S1")).startswith("damaged")
    expected = [ExpectedOutput(tmp_path / "tiles/S1.json", "tile")]
    assert {finding.state for finding in verify(tmp_path, expected)} >= {"damaged"}
    assert records_of(tmp_path, "tile") == {}
    tile(tmp_path, "S1")
    pack(tmp_path, "S1")
    assert outputs_changed(record_path(tmp_path, "tile", "S1")) == ""


def test_a_damaged_record_is_not_packed(tmp_path):
    tile(tmp_path, "S1", "S2.5")
    record_path(tmp_path, "tile", "S1").write_text("{")
    pack(tmp_path, "S1", "S2.5")
    assert "damaged" in outputs_changed(record_path(tmp_path, "tile", "S1"))
    assert is_recorded(record_path(tmp_path, "tile", "S2.5"))


def test_interrupted_packing_loses_nothing(tmp_path, monkeypatch):
    """Whatever a process that packs has done when it is killed, each record can be read."""
    tile(tmp_path, *NAMES)
    before = records(tmp_path)
    unlink = Path.unlink
    for stop in range(len(NAMES)):
        count = 0

        def unlink_some(path: Path, *args: object, **options: object) -> None:
            nonlocal count
            if path.parent.name == "tile":
                if count == stop:  # noqa: B023
                    raise KeyboardInterrupt
                count += 1
            unlink(path, *args, **options)

        monkeypatch.setattr(Path, "unlink", unlink_some)
        with pytest.raises(KeyboardInterrupt):
            pack_records(tmp_path / "provenance/tile", NAMES)
        monkeypatch.undo()
        assert records(tmp_path) == before
        tile(tmp_path, *NAMES)
        before = records(tmp_path)


UPDATE = """
import sys
from pathlib import Path
from gigatile.provenance.output_records import record_path, source_fingerprint
run, slide = map(Path, sys.argv[1:])
for name in ("S1", "S2.5"):
    assert source_fingerprint([slide], record_path(run, "tile", name), update=True)
exec(sys.stdin.read())
"""


@pytest.mark.parametrize("meanwhile", ["", "tiled again", "packed again", "killed"])
def test_other_times_of_slides_are_recorded_in_the_pack(tmp_path, meanwhile):
    slide = tmp_path / "slide.svs"
    slide.write_bytes(b"a slide")
    run = tmp_path / "run"
    (run / "tiles").mkdir(parents=True)
    for name in ("S1", "S2.5"):
        (run / f"tiles/{name}.json").write_text("{}")
        record = record_path(run, "tile", name)
        write_output_record(record, [run / f"tiles/{name}.json"], [slide], seconds=1)
    pack_records(run / "provenance/tile", ["S1", "S2.5"])
    before = records_of(run, "tile")
    os.utime(slide, (1, 1))
    again = (
        "from gigatile.provenance.output_records import write_output_record\n"
        "from gigatile.provenance.packs import pack_records\n"
        "write_output_record(record_path(run, 'tile', 'S1'), [run / 'tiles/S1.json'], [slide],"
        " seconds=2)\n"
    )
    steps = {
        "": "",
        "tiled again": again,
        "packed again": f"{again}pack_records(run / 'provenance/tile', ['S1', 'S2.5'])",
        "killed": "import os; os._exit(0)",
    }
    line = [sys.executable, "-c", UPDATE, run, slide]
    done = subprocess.run(line, input=steps[meanwhile], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    after = records_of(run, "tile")
    if meanwhile == "killed":
        assert after == before
        return
    assert after["S2.5"].source.modified_ns == 10**9 != before["S2.5"].source.modified_ns
    assert after["S2.5"].outputs == before["S2.5"].outputs
    assert after["S1"].seconds == (2 if "again" in meanwhile else 1)
    assert after["S1"].source.modified_ns == 10**9
    assert (run / "provenance/tile").exists() == (meanwhile == "tiled again")


def test_lines_are_json(tmp_path):
    tile(tmp_path, *NAMES)
    pack(tmp_path, *NAMES)
    lines = (tmp_path / "provenance/tile.jsonl").read_text().splitlines()
    read = {json.loads(line.split("\t")[0]): json.loads(line.split("\t")[1]) for line in lines}
    assert list(read) == sorted(NAMES)
