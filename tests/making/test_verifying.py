import os
from pathlib import Path

import pytest

from gigatile.making.made import note_of, write_note
from gigatile.making.verifying import Expected, Finding, summary, table_of, verify, write_findings
from gigatile.tables import read_table

CUT = ("tiles/S1.tfrecord", "tiles/S1.json")


class Run:
    """A run of two stages: one slide is cut, and a page and pictures are made of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in (*CUT, "report/index.html", "report/pages/one.html", "logs/tile/S1.log"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"this is {name}")
        write_note(note_of(folder, "tile", "S1"), [folder / name for name in CUT])
        pages = [folder / "report/index.html", folder / "report/pages"]
        write_note(note_of(folder, "report"), pages)
        self.stale: dict[str, str] = {}

    def found(self) -> list[tuple[str, str, str]]:
        return [
            (one.state, one.stage, str(one.path.relative_to(self.folder)))
            for one in self.findings()
        ]

    def findings(self) -> list[Finding]:
        made_by = dict.fromkeys(CUT, "tile")
        made_by |= {"report/index.html": "report", "report/pages": "report"}
        expected = [
            Expected(self.folder / name, stage, self.stale.get(name, ""))
            for name, stage in made_by.items()
        ]
        return verify(self.folder, expected, threads=2)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_what_is_as_it_should_be(run):
    assert run.found() == []


@pytest.mark.parametrize(
    ("file", "stage"),
    [(CUT[0], "tile"), ("report/index.html", "report"), ("report/pages/one.html", "report")],
)
def test_a_file_that_is_damaged_or_missing(run, file, stage):
    path = run.folder / file
    text, seen = path.read_text(), path.stat()
    path.write_text(text.replace("this", "That"))
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert run.found() == [("damaged", stage, file)]
    path.write_text(text[:-1])
    assert run.found() == [("damaged", stage, file)]
    path.unlink()
    assert run.found() == [("missing", stage, file)]
    path.mkdir()
    assert run.found() == [("damaged", stage, file)]


@pytest.mark.parametrize("older", ["cut", "zz"])
def test_a_note_of_a_stage_that_had_another_name_is_left_over(run, older):
    old = note_of(run.folder, older, "S1")
    old.parent.mkdir()
    content = note_of(run.folder, "tile", "S1").read_text()
    old.write_text(content.replace('"sha256": "', '"sha256": "0'))
    assert run.found() == [("left over", "made", f"made/{older}/S1.json")]


def test_a_stage_that_was_never_run(run):
    note_of(run.folder, "report").unlink()
    for name in ("index.html", "pages/one.html"):
        (run.folder / "report" / name).unlink()
    (run.folder / "report/pages").rmdir()
    assert run.found() == [
        ("missing", "report", "report/index.html"),
        ("missing", "report", "report/pages"),
    ]


def test_what_was_put_away(run):
    (run.folder / "tiles").rename(run.folder.with_name("away"))
    assert run.found() == [("missing", "tile", "tiles/S1.json"), ("missing", "tile", CUT[0])]
    assert {one.reason for one in run.findings()} == {"put away"}


def test_a_folder_may_be_empty(run):
    (run.folder / "report/pages/one.html").unlink()
    write_note(note_of(run.folder, "report"), [run.folder / "report/index.html"])
    assert run.found() == []


def test_what_is_stale_where_it_is_whole(run):
    run.stale = dict.fromkeys(CUT, "other settings")
    assert run.found() == [("stale", "tile", "tiles/S1.json"), ("stale", "tile", CUT[0])]
    (run.folder / CUT[0]).write_text("damaged")
    assert run.found() == [("damaged", "tile", CUT[0])], "that it is to run again follows from it"


def test_files_of_which_no_checksum_was_noted(run):
    note = note_of(run.folder, "tile", "S1")
    note.write_text("{")
    assert run.found() == [
        ("damaged", "made", "made/tile/S1.json"),
        ("stale", "tile", "tiles/S1.json"),
        ("stale", "tile", CUT[0]),
    ]
    note.unlink()
    assert run.found() == [("stale", "tile", "tiles/S1.json"), ("stale", "tile", CUT[0])]


def test_what_nothing_makes_any_more(run):
    for name in (
        *("tiles/S2.json", "tiles/.S1-a1b2.tfrecord", "logs/tile/S2.log", "benchmarks/tile/S2.tsv"),
        *("report/pages/two.html", "tensorboard/events", "checkpoints/state"),
    ):
        (run.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (run.folder / name).write_text("of a slide that is gone")
    write_note(note_of(run.folder, "tile", "S2"), [run.folder / "tiles/S2.json"])
    assert run.found() == [
        ("left over", "benchmarks", "benchmarks/tile/S2.tsv"),
        ("left over", "logs", "logs/tile/S2.log"),
        ("left over", "made", "made/tile/S2.json"),
        ("left over", "report", "report/pages/two.html"),
        ("left over", "tiles", "tiles/.S1-a1b2.tfrecord"),
        ("left over", "tiles", "tiles/S2.json"),
    ]


def test_the_table_names_all_and_the_summary_some(run):
    for number in range(5):
        (run.folder / f"tiles/{number}.json").touch()
    found = verify(run.folder, [], threads=1)
    write_findings(run.folder, found)
    rows = read_table(table_of(run.folder), ("state", "stage", "file", "reason"))
    assert {row["file"] for row in rows} >= {f"tiles/{number}.json" for number in range(5)}
    lines = [line for line in summary(run.folder, found) if " tiles:" in line]
    assert lines == [
        "left over  tiles: nothing makes it any more: tiles/0.json, tiles/1.json, tiles/2.json "
        "and 4 more"
    ]


def test_nothing_is_made_yet(tmp_path):
    path = tmp_path / "run/tiles/S1.json"
    (found,) = verify(tmp_path / "run", [Expected(path, "tile", "to be made")])
    assert (found.state, found.path) == ("missing", path)
