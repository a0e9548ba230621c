"""Copies of files under several patients or ids, and new slides that are in the cohort."""

import os
from pathlib import Path

import pytest

from gigatile.cohort.cases import Case
from gigatile.cohort.copies import check_copies, copies_in_cohort
from gigatile.cohort.samples import read_samples
from gigatile.errors import UserError


def sheet_of(folder: Path, name: str, *rows: tuple[str, str, bytes]) -> Path:
    lines = ["slide\tpatient\tlabel\tpath"]
    for slide, patient, content in rows:
        (folder / f"{slide}.svs").write_bytes(content)
        lines.append(f"{slide}\t{patient}\tx\t{slide}.svs")
    path = folder / name
    path.write_text("\n".join([*lines, ""]))
    return path


# Its last byte is not changed by any test, so that only the tests make copies.
CONTENT = b"II*\0" + os.urandom(200_000) + b"."


def test_all_files_of_two_patients_are_listed(tmp_path: Path) -> None:
    other = CONTENT[::-1]
    sheet = sheet_of(
        tmp_path, "s.tsv", ("A", "P", CONTENT), ("B", "Q", CONTENT), ("C", "R", other),
        ("D", "S", CONTENT[:-1] + b"?"), ("E", "T", other),
    )  # fmt: skip
    with pytest.raises(UserError) as caught:
        check_copies(read_samples(sheet), sheet)
    heading, *faults = str(caught.value).splitlines()
    assert heading.startswith(f"{sheet}: 2 file(s) belong to two patients")
    assert faults == [
        f"  - row 3: file {tmp_path}/B.svs of slide 'B' has the same content as {tmp_path}/A.svs "
        "of slide 'A' in row 2; the patients are 'Q' and 'P'",
        f"  - row 6: file {tmp_path}/E.svs of slide 'E' has the same content as {tmp_path}/C.svs "
        "of slide 'C' in row 4; the patients are 'T' and 'R'",
    ]


def test_copy_of_the_same_patient_is_a_warning(tmp_path: Path) -> None:
    sheet = sheet_of(tmp_path, "s.tsv", ("A", "P", CONTENT), ("B", "P", CONTENT))
    (warning,) = check_copies(read_samples(sheet), sheet)
    assert warning.endswith("of slide 'A' in row 2; both are of patient 'P'")


def test_empty_files_and_html_pages_are_ignored(tmp_path: Path) -> None:
    html = b"<!DOCTYPE html><html>Not found</html>"
    rows = [("A", "P", b""), ("B", "Q", b""), ("C", "R", html), ("D", "S", html)]
    sheet = sheet_of(tmp_path, "s.tsv", *rows)
    assert check_copies(read_samples(sheet), sheet) == []


def test_images_are_compared_and_segmentations_are_not(tmp_path: Path) -> None:
    for name in ("a1", "b1", "a2", "b2"):
        (tmp_path / name).write_bytes(CONTENT if name.endswith("1") else b"labels")
    cases = [
        Case(name, patient, {"t1": tmp_path / f"{name}1"}, tmp_path / f"{name}2", "", "", row)
        for row, (name, patient) in enumerate((("a", "P"), ("b", "Q")), 2)
    ]
    with pytest.raises(UserError, match=r"1 file\(s\) belong to two patients"):
        check_copies(cases, tmp_path / "cases.tsv")
    (tmp_path / "b1").write_bytes(CONTENT[1:])
    assert check_copies(cases, tmp_path / "cases.tsv") == []


def test_only_files_of_equal_size_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sheet = sheet_of(tmp_path, "s.tsv", *((f"S{n}", f"P{n}", CONTENT[n:]) for n in range(9)))
    members = read_samples(sheet)

    def never(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Path, "open", never)
    assert check_copies(members, sheet) == []


def test_new_slide_of_the_cohort_is_a_warning(tmp_path: Path) -> None:
    cohort = read_samples(sheet_of(tmp_path, "s.tsv", ("A", "P", CONTENT), ("B", "Q", b"II*")))
    (tmp_path / "new").mkdir()
    rows = [("N", "X", CONTENT), ("b", "Y", b"II* other"), ("M", "Z", b"MM")]
    sheet = sheet_of(tmp_path / "new", "n.tsv", *rows)
    warnings = copies_in_cohort(read_samples(sheet), cohort, sheet)
    assert [warning.split(",")[1] for warning in warnings] == [
        " row 2: slide 'N' has the file of 'A' in the cohort; the model is trained and tested on "
        "the cohort",
        " row 3: slide 'b' has the id of 'B' in the cohort; the model is trained and tested on the "
        "cohort",
    ]
