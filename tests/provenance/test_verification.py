import os
from pathlib import Path

import pytest

from gigatile.provenance.output_records import record_path, write_output_record
from gigatile.provenance.verification import (
    ExpectedOutput,
    Finding,
    summary,
    table_of,
    verify,
    write_findings,
)
from gigatile.tables import read_table

TILED = ("tiles/S1.tfrecord", "tiles/S1.json")


class Run:
    """A run of two stages: one tiles a slide, the other writes a page and pictures."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in (*TILED, "report/index.html", "report/pages/one.html", "logs/tile/S1.log"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"this is {name}")
        write_output_record(record_path(folder, "tile", "S1"), [folder / name for name in TILED])
        pages = [folder / "report/index.html", folder / "report/pages"]
        write_output_record(record_path(folder, "report"), pages)
        self.stale: dict[str, str] = {}

    def states(self) -> list[tuple[str, str, str]]:
        return [
            (item.state, item.stage, str(item.path.relative_to(self.folder)))
            for item in self.findings()
        ]

    def findings(self) -> list[Finding]:
        stages = dict.fromkeys(TILED, "tile")
        stages |= {"report/index.html": "report", "report/pages": "report"}
        expected = [
            ExpectedOutput(self.folder / name, stage, self.stale.get(name, ""))
            for name, stage in stages.items()
        ]
        return verify(self.folder, expected, threads=2)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_unchanged_run_has_no_findings(run):
    assert run.states() == []


@pytest.mark.parametrize(
    ("file", "stage"),
    [(TILED[0], "tile"), ("report/index.html", "report"), ("report/pages/one.html", "report")],
)
def test_damaged_or_missing_file_is_found(run, file, stage):
    path = run.folder / file
    text, seen = path.read_text(), path.stat()
    path.write_text(text.replace("this", "That"))
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert run.states() == [("damaged", stage, file)]
    path.write_text(text[:-1])
    assert run.states() == [("damaged", stage, file)]
    path.unlink()
    assert run.states() == [("missing", stage, file)]
    path.mkdir()
    assert run.states() == [("damaged", stage, file)]


@pytest.mark.parametrize("older", ["cut", "zz"])
def test_record_of_a_renamed_stage_is_left_over(run, older):
    old = record_path(run.folder, older, "S1")
    old.parent.mkdir()
    content = record_path(run.folder, "tile", "S1").read_text()
    old.write_text(content.replace('"sha256": "', '"sha256": "0'))
    assert run.states() == [("left over", "provenance", f"provenance/{older}/S1.json")]


def test_outputs_of_a_stage_that_never_ran_are_missing(run):
    record_path(run.folder, "report").unlink()
    for name in ("index.html", "pages/one.html"):
        (run.folder / "report" / name).unlink()
    (run.folder / "report/pages").rmdir()
    assert run.states() == [
        ("missing", "report", "report/index.html"),
        ("missing", "report", "report/pages"),
    ]


def test_folder_that_was_moved_away(run):
    (run.folder / "tiles").rename(run.folder.with_name("away"))
    assert run.states() == [("missing", "tile", "tiles/S1.json"), ("missing", "tile", TILED[0])]
    assert {item.reason for item in run.findings()} == {"moved away"}


def test_output_folder_may_be_empty(run):
    (run.folder / "report/pages/one.html").unlink()
    write_output_record(record_path(run.folder, "report"), [run.folder / "report/index.html"])
    assert run.states() == []


def test_stale_is_reported_only_for_undamaged_files(run):
    run.stale = dict.fromkeys(TILED, "other settings")
    assert run.states() == [("stale", "tile", "tiles/S1.json"), ("stale", "tile", TILED[0])]
    (run.folder / TILED[0]).write_text("damaged")
    assert run.states() == [("damaged", "tile", TILED[0])], "a damaged file reruns the job anyway"


def test_files_without_a_recorded_checksum_are_stale(run):
    record = record_path(run.folder, "tile", "S1")
    record.write_text("{")
    assert run.states() == [
        ("damaged", "provenance", "provenance/tile/S1.json"),
        ("stale", "tile", "tiles/S1.json"),
        ("stale", "tile", TILED[0]),
    ]
    record.unlink()
    assert run.states() == [("stale", "tile", "tiles/S1.json"), ("stale", "tile", TILED[0])]


def test_files_that_no_job_makes_are_left_over(run):
    for name in (
        *("tiles/S2.json", "tiles/.S1-a1b2.tfrecord", "logs/tile/S2.log", "benchmarks/tile/S2.tsv"),
        *("report/pages/two.html", "tensorboard/events", "checkpoints/state"),
    ):
        (run.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (run.folder / name).write_text("of a removed slide")
    write_output_record(record_path(run.folder, "tile", "S2"), [run.folder / "tiles/S2.json"])
    assert run.states() == [
        ("left over", "benchmarks", "benchmarks/tile/S2.tsv"),
        ("left over", "logs", "logs/tile/S2.log"),
        ("left over", "provenance", "provenance/tile/S2.json"),
        ("left over", "report", "report/pages/two.html"),
        ("left over", "tiles", "tiles/.S1-a1b2.tfrecord"),
        ("left over", "tiles", "tiles/S2.json"),
    ]


def test_table_lists_all_files_and_the_summary_some(run):
    for number in range(5):
        (run.folder / f"tiles/{number}.json").touch()
    findings = verify(run.folder, [], threads=1)
    write_findings(run.folder, findings)
    rows = read_table(table_of(run.folder), ("state", "stage", "file", "reason"))
    assert {row["file"] for row in rows} >= {f"tiles/{number}.json" for number in range(5)}
    lines = [line for line in summary(run.folder, findings) if " tiles:" in line]
    assert lines == [
        "left over  tiles: no job makes it: tiles/0.json, tiles/1.json, tiles/2.json and 4 more"
    ]


def test_all_outputs_of_a_new_run_are_missing(tmp_path):
    path = tmp_path / "run/tiles/S1.json"
    (finding,) = verify(tmp_path / "run", [ExpectedOutput(path, "tile", "not made yet")])
    assert (finding.state, finding.path) == ("missing", path)
