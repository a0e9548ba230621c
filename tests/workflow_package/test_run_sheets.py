"""The sheets of a run: what the main process checks, and what the process of a job reads."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from gigatile.errors import UserError
from gigatile.settings.whole import Settings, load_settings
from gigatile.workflow import sheets
from gigatile.workflow.sheets import check_sheets, read_sheet

MAIN, JOB = SimpleNamespace(is_main_process=True), SimpleNamespace(is_main_process=False)
ROWS = [
    (f"{label}-{split}", label, split) for label in "xy" for split in ("train", "valid", "test")
]


def nothing_missing(path: Path) -> bool:
    return False


@pytest.fixture
def settings(tmp_path, monkeypatch) -> Settings:
    """Return the settings of a run with six patients and a new slide, and write the sheets."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{name}\t{name}\t{label}\t{name}.svs\t{split}" for name, label, split in ROWS]
    (tmp_path / "samples.tsv").write_text("slide\tpatient\tlabel\tpath\tsplit\n" + "\n".join(lines))
    for size, (name, _, _) in enumerate(ROWS):
        (tmp_path / f"{name}.svs").write_bytes(bytes(5000 + size))
    (tmp_path / "new.tsv").write_text("slide\tpath\nN1\tx-test.svs\n")
    values = {"run": "mine", "samples": "samples.tsv", "predict": {"samples": "new.tsv"}}
    return load_settings(values, "the test")


def read(settings: Settings, process: SimpleNamespace = MAIN) -> tuple[dict, dict]:
    cohort = read_sheet(process, settings, settings.samples, nothing_missing)
    new = read_sheet(process, settings, settings.predict.samples, nothing_missing, labelled=False)
    return cohort, new


def test_rows_are_returned_by_id(settings):
    cohort, new = read(settings)
    assert list(cohort) == [name for name, _, _ in ROWS] and list(new) == ["N1"]


def test_no_sheet_has_no_rows(settings):
    assert read_sheet(MAIN, settings, None, nothing_missing) == {}


def test_only_the_main_process_checks_that_files_exist(settings):
    Path("x-train.svs").unlink()
    assert len(read(settings, JOB)[0]) == 6
    with pytest.raises(UserError, match=r"row 2: no file x-train\.svs"):
        read(settings)
    assert len(read_sheet(MAIN, settings, settings.samples, lambda path: True)) == 6


def test_only_the_main_process_prints_warnings(settings, monkeypatch, capsys):
    monkeypatch.setattr(sheets, "sheet_warnings", lambda members: ["something is odd"])
    read_sheet(JOB, settings, settings.samples, nothing_missing)
    assert capsys.readouterr().err == ""
    read_sheet(MAIN, settings, settings.samples, nothing_missing)
    assert capsys.readouterr().err == "warning: samples.tsv: something is odd\n"


def test_new_slide_of_the_cohort_is_a_warning(settings, capsys):
    check_sheets(MAIN, settings, *read(settings), with_files=True)
    assert "N1" in capsys.readouterr().err


def test_file_of_two_patients_is_an_error_if_files_are_here(settings):
    Path("x-train.svs").write_bytes(Path("y-test.svs").read_bytes())
    members = read(settings)
    check_sheets(JOB, settings, *members, with_files=True)
    check_sheets(MAIN, settings, *members, with_files=False)
    with pytest.raises(UserError, match="belong to two patients"):
        check_sheets(MAIN, settings, *members, with_files=True)


def test_split_without_a_label_is_an_error(settings):
    cohort, new = read(settings)
    del cohort["x-test"]
    with pytest.raises(UserError, match="no patient with label 'x' in test"):
        check_sheets(MAIN, settings, cohort, new, with_files=True)
