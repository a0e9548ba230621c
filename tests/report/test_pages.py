from pathlib import Path

import pytest

from gigatile.errors import UserError
from gigatile.evaluation.metrics_file import Interval
from gigatile.report.pages import (
    check_ids,
    figure,
    interval,
    some,
    without_folders,
    write_pages,
)


def put(folder: Path, text: str) -> None:
    (folder / "index.html").write_text(text)
    (folder / "slides/S1.html").write_text(text)


def test_pages_appear_together(tmp_path: Path) -> None:
    out = tmp_path / "run/report"
    with write_pages(out) as building:
        put(building, "new")
        assert not out.exists()
    assert (out / "index.html").read_text() == (out / "slides/S1.html").read_text() == "new"
    assert [path.name for path in out.parent.iterdir()] == ["report"]


def test_failure_keeps_the_old_pages(tmp_path: Path) -> None:
    out = tmp_path / "report"
    with write_pages(out) as building:
        put(building, "old")
    with pytest.raises(RuntimeError), write_pages(out) as building:
        put(building, "new")
        raise RuntimeError
    assert (out / "index.html").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


def test_old_pages_are_removed_and_other_files_kept(tmp_path: Path) -> None:
    with write_pages(tmp_path / "predictions") as building:
        put(building, "old")
        (building / "slides/S0.html").write_text("gone from the sheet")
    (tmp_path / "predictions/slides.tsv").write_text("not a page")
    with write_pages(tmp_path / "predictions") as building:
        put(building, "new")
    names = {path.name for path in (tmp_path / "predictions").rglob("*") if path.is_file()}
    assert names == {"index.html", "S1.html", "slides.tsv"}
    assert (tmp_path / "predictions/slides.tsv").read_text() == "not a page"
    assert (tmp_path / "predictions/index.html").read_text() == "new"


def test_undefined_numbers_are_named() -> None:
    assert figure(None) == "not defined"
    assert figure(0.0) == "0.000"
    none = Interval(value=1, low=None, high=None, patients=3, no_interval="3 patients")
    assert interval(none) == "no interval: 3 patients"
    both = interval(Interval(value=0.5, low=0.25, high=0.75, patients=9, no_interval=None))
    assert both.startswith("0.250") and both.endswith("0.750")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/data/in/S1.svs: not a slide", "…/S1.svs: not a slide"),
        ("cannot read '/mnt/a b/S1.svs'", "cannot read '…/S1.svs'"),
        ("copied from ~/slides/S1.svs", "copied from …/S1.svs"),
        (r"C:\slides\new\S1.svs is bad", "…/S1.svs is bad"),
        ("file:///data/in/S1.svs", "…/S1.svs"),
        ("0.5 µm/px, 1/2 and/or 3/4", "0.5 µm/px, 1/2 and/or 3/4"),
        ("tiles/S1.svs", "tiles/S1.svs"),
    ],
)
def test_folders_are_removed_from_paths(text: str, shown: str) -> None:
    assert without_folders(text) == shown


def test_only_the_first_of_many_names_are_listed() -> None:
    names = [f"P{number}" for number in range(416)]
    assert some(names[:2]) == "P0, P1"
    assert some(names, 3) == "P0, P1, P2 and 413 more"


@pytest.mark.parametrize("bad", ["../S1", "a/b", ".hidden", "", "a b", "<b>"])
def test_unsafe_ids_are_refused(bad: str) -> None:
    with pytest.raises(UserError, match=r"tiles\.tsv.*unsafe"):
        check_ids(["S1", bad], Path("tiles.tsv"))


def test_duplicate_id_is_refused() -> None:
    with pytest.raises(UserError, match="twice"):
        check_ids(["S1", "S1"], Path("tiles.tsv"))
