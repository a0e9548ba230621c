"""New slides and cases that are in the cohort are found and named."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from case_runs import add_new_cases
from slide_runs import add_predictions, jpeg
from test_leaks import Run
from test_self_contained import Page
from written import write_new_cases, write_new_slides

from gigatile.errors import UserError
from gigatile.files import sha256_of
from gigatile.records import write_records
from gigatile.records.volume_form import encode_volume
from gigatile.report.cases.records import VOLUMES
from gigatile.report.inputs import CohortRow
from gigatile.report.known_samples import CohortMatches, compare_with_cohort
from gigatile.report.slides.records import TILES
from gigatile.tables import read_table, write_table


@pytest.fixture
def cohort(tmp_path: Path) -> Run:
    return Run(tmp_path / "cohort")


@pytest.fixture
def new(tmp_path: Path) -> Run:
    run = Run(tmp_path / "new")
    run.rows.clear()
    return run


def add(run: Run, slide: str, patient: str, images: list[bytes]) -> None:
    run.rows[slide] = CohortRow(
        id=slide, patient=patient, split="", state="tiled", records=0, sha256=""
    )
    run.write(slide, images)


def random_tiles(count: int, seed: int) -> list[bytes]:
    rng = np.random.default_rng(seed)
    return [jpeg(rng.integers(0, 255, (16, 16, 3), np.uint8)) for _ in range(count)]


def compare(new: Run, cohort: Run) -> CohortMatches:
    return compare_with_cohort(
        list(new.rows.values()),
        new.folder / "tiles",
        list(cohort.rows.values()),
        cohort.folder / "tiles",
        TILES,
    )


def found(new: Run, cohort: Run) -> list[tuple]:
    return [(m.new, m.known.id, tuple(m.same), m.images) for m in compare(new, cohort).matches]


def test_copy_with_another_name_is_found(new: Run, cohort: Run) -> None:
    add(new, "N", "Q", cohort.images("A"))
    add(new, "M", "R", random_tiles(3, 1))
    assert found(new, cohort) == [("N", "A", ("pixels",), 4)]
    assert compare(new, cohort).names == ["N"]


def test_one_common_tile_is_found_unless_plain(new: Run, cohort: Run) -> None:
    white = jpeg(np.full((16, 16, 3), 243, np.uint8))
    cohort.write("B", [*cohort.images("B"), white])
    add(new, "N", "Q", [white, *random_tiles(3, 2)])
    assert found(new, cohort) == []
    add(new, "N", "Q", [*random_tiles(3, 2), cohort.images("B")[2]])
    assert found(new, cohort) == [("N", "B", ("pixels",), 1)]


@pytest.mark.parametrize(
    ("slide", "patient", "same"),
    [("a", "Q", "id"), ("N", "P-A", "patient"), ("N", "p\u2011a", "patient")],
)
def test_same_id_or_patient_is_found(
    new: Run, cohort: Run, slide: str, patient: str, same: str
) -> None:
    add(new, slide, patient, random_tiles(2, 3))
    assert found(new, cohort) == [(slide, "A", (same,), 0)]


def test_every_spelling_of_a_patient_is_found(new: Run, cohort: Run) -> None:
    add(new, "M", "p-a", random_tiles(1, 16))
    add(new, "N", "p\u2011a", random_tiles(1, 17))
    assert found(new, cohort) == [("M", "A", ("patient",), 0), ("N", "A", ("patient",), 0)]


def test_failed_slides_are_compared_by_id_and_patient(new: Run, cohort: Run) -> None:
    add(new, "N", "P-T", [])
    new.change("N", state="failed")
    cohort.path("T").unlink()
    cohort.change("T", state="failed")
    assert found(new, cohort) == [("N", "T", ("patient",), 0)]
    assert compare(new, cohort).missing == []


def test_missing_records_of_the_cohort_are_named(new: Run, cohort: Run) -> None:
    add(new, "N", "Q", cohort.images("A"))
    cohort.path("A").unlink()
    result = compare(new, cohort)
    assert result.missing == ["A"] and list(result.compared) == ["B", "V", "T"]


def test_damaged_records_of_the_cohort_are_refused(new: Run, cohort: Run) -> None:
    data = cohort.path("V").read_bytes()
    cohort.path("V").write_bytes(data[:-9])
    add(new, "N", "Q", random_tiles(1, 4))
    with pytest.raises(UserError, match=r"V\.tfrecord"):
        compare(new, cohort)


def test_case_is_found_by_one_channel(tmp_path: Path) -> None:
    image = np.random.default_rng(5).standard_normal((9, 9, 9, 2)).astype(np.float16)
    other = image.copy()
    other[..., 1] += 1
    empty = image * np.array([0, 1], np.float16) + np.array([0, 2], np.float16)
    rows = []
    for name, voxels in (("C", image), ("N", other), ("M", empty), ("E", empty + empty)):
        path = tmp_path / f"{name}.tfrecord"
        write_records(path, [encode_volume(name, voxels, None, ("a", "b"), {})])
        rows.append(
            CohortRow(
                id=name,
                patient=name,
                split="train",
                state="prepared",
                records=1,
                sha256=sha256_of(path),
            )
        )
    result = compare_with_cohort(rows[1:3], tmp_path, [rows[0], rows[3]], tmp_path, VOLUMES)
    assert [(m.new, m.known.id, m.images) for m in result.matches] == [("N", "C", 1)]


def test_pages_of_slides_name_matches(run: Path, tmp_path: Path) -> None:
    """S03 is in the cohort as S03; a copy of S13 has another id, patient and file."""
    new = add_predictions(run)
    for path in (new / "tiles.tsv", new / "slides.tsv"):
        rows = [r for r in read_table(path) if r["slide"] in ("S03", "S14")]
        write_table(path, list(rows[0]), [list(row.values()) for row in rows])
    cohort = tmp_path / "cohort"
    shutil.copytree(run / "tiles", cohort / "tiles")
    rows = read_table(run / "tiles.tsv")
    known = [row for row in rows if row["slide"] != "S14"]
    write_table(cohort / "tiles.tsv", list(rows[0]), [list(row.values()) for row in known])
    table = run / "predictions/in_cohort.tsv"
    write_new_slides(run, run / "pages", cohort, table)
    index, slide, other = (
        Page(run / "pages" / name) for name in ("index.html", "slides/S03.html", "slides/S14.html")
    )
    kept = next(row["tiles"] for row in rows if row["slide"] == "S03")
    text = f"S03 (test): same id, patient, pixels ({kept} equal tiles)"
    assert "2 slides or their patients are in the cohort: S03, S14" in index.text
    assert text in index.text and text in slide.text
    assert "This slide is in the cohort." in slide.text
    # F2 could not be tiled; it is of the same patient.
    assert "The patient of this slide is in the cohort." in other.text
    assert "F2 (test): same patient" in other.text
    assert [list(row.values()) for row in read_table(table)] == [
        ["S03", "S03", "P03", "test", "id, patient, pixels", kept],
        ["S03", "S03b", "P03", "test", "patient", "0"],
        ["S14", "F2", "P14", "test", "patient", "0"],
    ]


def test_pages_without_comparison_say_so(run: Path) -> None:
    add_predictions(run)
    write_new_slides(run, run / "pages")
    index = Page(run / "pages/index.html")
    assert "Not compared with the cohort." in index.text
    assert "In the cohort" not in index.text


def test_pages_of_cases_name_matches(case_run: Path) -> None:
    add_new_cases(case_run)
    table, pages = case_run / "predictions/in_cohort.tsv", case_run / "pages"
    write_new_cases(case_run, pages, case_run, table)
    index = Page(pages / "index.html")
    assert "in the cohort:" not in index.text
    assert "by the pixels of 8 cases" in index.text
    assert read_table(table) == []
    write_table(
        case_run / "cases.tsv",
        list((rows := read_table(case_run / "cases.tsv"))[0]),
        [list((row | {"patient": "Q1"} if row["case"] == "C1" else row).values()) for row in rows],
    )
    write_new_cases(case_run, pages, case_run, table)
    assert "1 case or its patients are in the cohort: N1" in Page(pages / "index.html").text
    page = Page(pages / "cases/N1.html")
    assert "The patient of this case is in the cohort." in page.text
    assert "C1 (train): same patient" in page.text
