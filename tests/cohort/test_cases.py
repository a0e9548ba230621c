"""Sheets of cases, their faults, and the tables of their states."""

import json
from pathlib import Path

import pytest

from gigatile.cohort.cases import Case, read_cases
from gigatile.cohort.collect import (
    check_any,
    check_remaining,
    collect_states,
    rows_of_sheet,
    usable_rows,
)
from gigatile.cohort.samples import Sample
from gigatile.cohort.splits import (
    assign,
    best_seed,
    check_labels,
    classes_of,
    imbalance,
    prove_splits,
    rows_of_splits,
)
from gigatile.cohort.state_tables import CASE_TABLE
from gigatile.errors import UserError
from gigatile.files import write_json
from gigatile.settings.split import SplitSettings
from gigatile.tables import read_table
from gigatile.tasks.sheets import read_any_sheet

MODALITIES = ("flair", "t1")
HEADER = "case\tpatient\tflair\tt1\tsegmentation"
STACKED = "case\tpatient\timage\tsegmentation"


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with the files a.nii to i.nii."""
    for name in "abcdefghi":
        (tmp_path / f"{name}.nii").touch()
    return tmp_path


def write(folder: Path, *lines: str) -> Path:
    sheet = folder / "cases.tsv"
    sheet.write_text("\n".join((*lines, "")))
    return sheet


def faults(folder: Path, *lines: str, **options) -> list[str]:
    """Return the lines of the message that refuses a sheet, without its heading."""
    sheet = write(folder, *lines)
    with pytest.raises(UserError) as caught:
        read_cases(sheet, MODALITIES, **options)
    heading, *messages = str(caught.value).splitlines()
    assert heading in (f"{sheet}: {len(messages)} fault(s)", f"{sheet}, row 1 (the header):")
    return [line.removeprefix("  - ") for line in messages]


# --- Good sheets


def test_columns_of_a_case_sheet(folder):
    sheet = write(
        folder,
        "site\tt1\tcase\tsegmentation\tflair\tpatient\tsplit\tage",
        f"north\tb.nii\tC-1.x\tc.nii\t{folder}/a.nii\tPatient  1\ttest\t60",
        "\te.nii\tC2\tf.nii\td.nii\tPatient 2\t\t",
    )
    first, two = read_cases(sheet, MODALITIES)
    images = {"flair": folder / "a.nii", "t1": folder / "b.nii"}
    assert first == Case("C-1.x", "Patient 1", images, folder / "c.nii", "test", "north", 2)
    assert list(first.images) == list(MODALITIES), "in the order of the settings"
    assert first.files == (folder / "a.nii", folder / "b.nii", folder / "c.nii")
    assert (first.id, first.unit, first.label) == ("C-1.x", "case", "")
    assert (two.split, two.site, two.row) == ("", "", 3)


def test_one_file_may_contain_all_modalities(folder):
    sheet = write(folder, STACKED, "C1\tP1\ta.nii\tb.nii")
    (case,) = read_cases(sheet, MODALITIES)
    assert (case.images, case.segmentation) == ({"image": folder / "a.nii"}, folder / "b.nii")


def test_missing_modality_is_no_fault_of_the_sheet(folder):
    (case,) = read_cases(write(folder, HEADER, "C1\tP1\t\ta.nii\tb.nii"), MODALITIES)
    assert case.images == {"t1": folder / "a.nii"}


def test_modalities_may_be_ignored(folder):
    """Tables and splits do not use images, so faults of images do not matter to them."""
    for header, row in (
        (HEADER, "C1\tP1\ta.nii\tgone.nii\tb.nii"),
        (STACKED, "C1\tP1\ta.nii\tb.nii"),
    ):
        (case,) = read_cases(write(folder, header, row), ())
        assert (case.id, case.patient, case.segmentation) == ("C1", "P1", folder / "b.nii")


def test_new_cases_need_no_patient_or_segmentation(folder):
    sheet = write(folder, "case\tflair\tt1", "N1\ta.nii\tb.nii")
    (case,) = read_cases(sheet, MODALITIES, labelled=False)
    assert (case.patient, case.segmentation, case.split) == ("N1", None, "")
    # If they have these columns, they are ignored.
    sheet = write(folder, f"{HEADER}\tsplit", "N1\tP1\ta.nii\tb.nii\tgone.nii\tnonsense")
    (case,) = read_cases(sheet, MODALITIES, labelled=False)
    assert (case.patient, case.segmentation, case.split) == ("P1", None, "")


def test_files_of_the_workflow_may_be_missing(folder):
    sheet = write(folder, HEADER, "C1\tP1\tlater/a.nii\tb.nii\tlater/c.nii")
    asked = []

    def may_be_missing(path: Path) -> bool:
        asked.append(path)
        return path.parent.name == "later"

    read_cases(sheet, MODALITIES, may_be_missing=may_be_missing)
    assert asked == [folder / "later/a.nii", folder / "later/c.nii"]


# --- Faults


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        ("case\tpatient\tflair", "column(s) t1, segmentation missing; found: case, patient, flair"),
        ("case\timage", "column(s) patient, segmentation missing; found: case, image"),
        (f"{HEADER}\tt1", "column 't1' appears twice"),
        ("case,patient,flair,t1,segmentation", "found 'case,patient,flair,t1,segmentation': separ"),
    ],
)
def test_missing_columns_are_named(folder, header, fault):
    (message,) = faults(folder, header, "C1\tP1\ta.nii\tb.nii\tc.nii")
    assert message.startswith(fault)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("\tP1\ta.nii\tb.nii\tc.nii", "case is empty"),
        ("C1\t\ta.nii\tb.nii\tc.nii", "patient is empty"),
        ("C1\tP1\ta.nii\tb.nii\t", "segmentation is empty"),
        ("C1\tP1\t\t\tc.nii", "no file: flair, t1 are all empty"),
        ("C/1\tP1\ta.nii\tb.nii\tc.nii", "case 'C/1' is unsafe as a file name; use up to 150"),
        (
            "C1\tP\u200b1\ta.nii\tb.nii\tc.nii",
            "patient 'P\\u200b1' contains an invisible character",
        ),
        ("C1\tP1\ta.nii\tb.nii\tz.nii", "no file "),
        ("C1\tP1\tz.nii\tb.nii\tc.nii", "no file "),
        ("C1\tP1\ta.nii\ta.nii\tc.nii", "file "),
        ("C1\tP1\ta.nii\tb.nii\ta.nii", "file "),
        ("C1\tP1\ta.nii", "3 cells, but 5 columns in the header"),
    ],
)
def test_faulty_row_is_refused(folder, row, fault):
    (message,) = faults(folder, HEADER, row)
    assert message.startswith(f"row 2: {fault}")
    assert fault != "file " or message.endswith("a.nii is in two columns")


def test_image_column_must_be_filled(folder):
    assert faults(folder, STACKED, "C1\tP1\t\tb.nii") == ["row 2: image is empty"]


def test_all_faults_are_listed_by_row(folder):
    messages = faults(
        folder,
        f"{HEADER}\tsplit",
        "C1\tP1\ta.nii\tb.nii\tc.nii\ttrain",
        "c1\tP2\td.nii\te.nii\tf.nii\t",
        "C3\tp1\tg.nii\th.nii\tc.nii\ttest",
        "C4\tP1\ti.nii\t\tgone.nii\tvalid",
        "C5\tP2\t\t\t\tnever",
    )
    assert [line[: line.index(":")] for line in messages] == [
        "row 3",
        "row 4",
        "row 4",
        *["row 5"] * 2,
        *["row 6"] * 3,
    ]
    text = "\n".join(messages)
    for part in (
        "row 3: case 'c1' is already in row 2 as 'C1', which is the same name on some file systems",
        "c.nii is already the file of case 'C1' in row 2",
        "row 4: one patient is spelled in two ways: 'P1' in row 2, 'p1' in row 4",
        "row 5: patient 'P1' is fixed to several splits (train in row 2, valid in row 5); all ",
        "row 6: no file: flair, t1 are all empty",
        "row 6: split 'never' must be train, valid, test or empty",
    ):
        assert part in text


def test_columns_decide_the_kind_of_a_sheet(folder):
    cases = read_any_sheet(write(folder, HEADER, "C1\tP1\ta.nii\tb.nii\tc.nii"))
    assert [type(member) for member in cases] == [Case]
    sheet = write(folder, "slide\tpatient\tlabel\tpath\tcase", "S1\tP1\tluad\ta.nii\tx")
    assert [type(member) for member in read_any_sheet(sheet)] == [Sample], "an additional column"
    with pytest.raises(UserError, match="no such sample sheet"):
        read_any_sheet(folder / "gone.tsv")


# --- Patients into splits


def case(number: int, patient: str, split: str = "") -> Case:
    return Case(f"C{number}", patient, {}, Path("s"), split, "", number + 2)


COHORT = [case(n, f"P{n // 2}") for n in range(40)]
SETTINGS = SplitSettings(seed=3)


def test_cases_of_a_patient_are_in_one_split():
    rows = rows_of_splits(COHORT, SETTINGS, "train", "valid", "test")
    assert [list(row) for row in rows] == [["case", "patient", "split"]] * 40
    split_by_patient = {}
    for row in rows:
        assert split_by_patient.setdefault(row["patient"], row["split"]) == row["split"]
    assert set(split_by_patient.values()) == {"train", "valid", "test"}
    proof = prove_splits(COHORT, split_by_patient, SETTINGS).to_json()
    assert (proof["labels"], classes_of(COHORT)) == ([], [])
    assert set(map(len, proof["shared_patients"].values())) == {0}
    for split, part in proof["splits"].items():
        rows_of_split = [row for row in rows if row["split"] == split]
        patients = {row["patient"] for row in rows_of_split}
        expected = {"patients": len(patients), "cases": len(rows_of_split)}
        expected |= {"share": round(len(patients) / 20, 4), "by_label": {}}
        assert part == expected


def test_split_without_a_patient_is_refused():
    cases = [case(0, "P0", "train"), case(1, "P1", "train"), case(2, "P2", "valid")]
    splits = assign(cases, SETTINGS)
    with pytest.raises(UserError) as caught:
        check_labels(cases, splits, Path("cases.tsv"))
    heading, fault = str(caught.value).splitlines()
    assert "To have a patient in each split, fix splits in the sheet's column" in heading
    assert fault == "  - no patient in test (the sheet has 3)"
    assert imbalance(cases, splits, SETTINGS) == float("inf")
    cases.append(case(3, "P3", "test"))
    check_labels(cases, assign(cases, SETTINGS), Path("cases.tsv"))


def test_best_seed_has_the_nearest_shares():
    worst, seed = best_seed(COHORT, SETTINGS, 50)[0]
    settings = SETTINGS.model_copy(update={"seed": seed})
    splits = assign(COHORT, settings)
    shares = {s: sum(v == s for v in splits.values()) / 20 for s in ("train", "valid", "test")}
    assert worst == pytest.approx(max(abs(v - getattr(settings, s)) for s, v in shares.items()))
    assert worst <= 0.05


# --- Tables of states


def write_state(folder: Path, name: str, reason: str | None = None, **more) -> None:
    write_json(
        folder / f"{name}.json",
        {
            "state": "failed" if reason else "prepared",
            "reason": reason,
            "warnings": ["one", "two"] if name == "C1" else [],
            "sources": {"flair": {"fingerprint": f"f of {name}"}, "t1": {}},
            "prepared": None if reason else {"shape": [100, 120, 50]},
            "records": {"sha256": f"sha of {name}"},
        }
        | more,
    )


@pytest.fixture
def rows() -> list[dict[str, str]]:
    splits = {"C1": "train", "C2": "train", "C3": "valid", "C4": "test"}
    return [{"case": c, "patient": f"P{c}", "split": split} for c, split in splits.items()]


def test_table_has_the_outcome_of_each_case(rows, tmp_path):
    for row in rows:
        write_state(tmp_path, row["case"], "it is\na page" if row["case"] == "C2" else None)
    table = tmp_path / "cases.tsv"
    collect_states(rows, tmp_path, table)
    first, two, *_ = table_rows = read_table(table)
    assert list(first) == list(CASE_TABLE.columns)
    assert [row["case"] for row in table_rows] == ["C1", "C2", "C3", "C4"]
    assert (first["state"], first["warnings"], first["sha256"]) == ("prepared", "2", "sha of C1")
    assert (first["megavoxels"], two["megavoxels"]) == ("0.600000", "0.000000")
    assert (first["reason"], two["reason"], two["state"]) == ("", "it is a page", "failed")
    assert [row["case"] for row in usable_rows(table, "train", "valid")] == ["C1", "C3"]
    check_remaining(table)

    before = table.read_bytes()
    collect_states(rows, tmp_path, table)
    assert table.read_bytes() == before
    write_state(tmp_path, "C1", sources={"flair": {"fingerprint": "another"}, "t1": {}})
    collect_states(rows, tmp_path, table)
    assert read_table(table)[0]["sources"] != first["sources"], "another file under the same name"


def test_split_without_usable_cases_is_refused(rows, tmp_path):
    for row in rows:
        write_state(tmp_path, row["case"], f"why {row['case']}" if row["case"] > "C2" else None)
    table = tmp_path / "cases.tsv"
    collect_states(rows, tmp_path, table)
    with pytest.raises(UserError) as caught:
        check_remaining(table)
    assert str(caught.value) == (
        f"{table}: the cohort cannot be used\n"
        "  - no usable case left in valid; failed:\n      C3: why C3\n"
        "  - no usable case left in test; failed:\n      C4: why C4"
    )
    check_remaining(table, ("train",))


def test_new_cases_without_a_usable_one_are_refused(folder, tmp_path):
    sheet = write(folder, "case\tflair\tt1", "N1\ta.nii\tb.nii")
    rows = rows_of_sheet(read_cases(sheet, MODALITIES, labelled=False))
    assert rows == [{"case": "N1", "patient": "N1"}]
    table = tmp_path / "table.tsv"
    write_state(tmp_path, "N1", "cut short")
    collect_states(rows, tmp_path, table)
    with pytest.raises(UserError, match=r"no usable case\n  - N1: cut short$"):
        check_any(table)
    write_state(tmp_path, "N1")
    collect_states(rows, tmp_path, table)
    check_any(table)
    assert read_table(table)[0]["split"] == ""


def test_commands_write_the_tables_of_cases(command, folder, tmp_path):
    """For the cohort, and for new cases, which have no splits."""
    names = ("train", "valid", "test")
    cohort = [f"C{n}\tP{n}\tx.nii\t\t{'abc'[n]}.nii\t{split}" for n, split in enumerate(names)]
    sheet = write(folder, f"{HEADER}\tsplit", *cohort)
    for n in range(3):
        write_state(tmp_path, f"C{n}")
    out = tmp_path / "table.tsv"
    done = command(
        *("collect_states.py", "--task", "volume_segmentation"),
        *("--samples", sheet, "--settings", SETTINGS.model_dump_json(), "--of", "train", "valid"),
        *("test", "--states", tmp_path, "--out", out),
    )
    assert done.returncode == 0, done.stderr
    assert [row["split"] for row in read_table(out)] == ["train", "valid", "test"]
    table, proof = tmp_path / "splits.tsv", tmp_path / "splits.json"
    done = command(
        *("split_patients.py", "--task", "volume_segmentation"),
        *("--samples", sheet, "--settings", SETTINGS.model_dump_json()),
        *("--table", table, "--proof", proof),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(proof.read_text())["splits"]["valid"]["cases"] == 1
    assert read_table(table)[2] == {"case": "C2", "patient": "P2", "split": "test"}
