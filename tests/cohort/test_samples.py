import codecs
import os
from pathlib import Path

import pytest

from gigatile.cohort.samples import Sample, read_samples
from gigatile.cohort.sheet_conflicts import sheet_warnings
from gigatile.cohort.splits import classes_of
from gigatile.errors import UserError

HEADER = "slide\tpatient\tlabel\tpath"
GOOD = (HEADER, "S1\tP1\tluad\ta.svs", "S2\tP1\tnormal\tb.svs", "S3\tP2\tlusc\tc.svs")


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with the files a.svs to f.svs."""
    for name in "abcdef":
        (tmp_path / f"{name}.svs").touch()
    return tmp_path


def write(folder: Path, *lines: str, end: str = "\n", encoding: str = "utf-8") -> Path:
    sheet = folder / "samples.tsv"
    sheet.write_bytes(end.join((*lines, "")).encode(encoding))
    return sheet


def faults(folder: Path, *lines: str, **options) -> list[str]:
    """Return the lines of the message that refuses a sheet, without its heading."""
    sheet = write(folder, *lines)
    with pytest.raises(UserError) as caught:
        read_samples(sheet, **options)
    heading, *messages = str(caught.value).splitlines()
    assert heading == f"{sheet}: {len(messages)} fault(s)"
    return [line.removeprefix("  - ") for line in messages]


def ids(samples: list[Sample]) -> list[str]:
    return [sample.slide for sample in samples]


# --- Good sheets


def test_columns_of_a_slide_sheet(folder):
    sheet = write(
        folder,
        "site\tslide\tpath\tlabel\tpatient\tmpp\tsplit\tnotes",
        "north\tS-1.x\ta.svs\tluad\tPatient 1\t0.25\ttest\tany \"thing'",
        f"\tS2\t{folder}/b.svs\tnormal\tPatient 2\t\t\t",
    )
    assert read_samples(sheet) == [
        Sample("S-1.x", "Patient 1", "luad", folder / "a.svs", 0.25, "test", "north", 2),
        Sample("S2", "Patient 2", "normal", folder / "b.svs", None, "", "", 3),
    ]


def test_paths_are_relative_to_the_sheet(folder, monkeypatch):
    (folder / "sheets").mkdir()
    sheet = write(folder / "sheets", HEADER, "S1\tP1\tluad\t../a.svs")
    monkeypatch.chdir("/")
    assert read_samples(sheet)[0].path.resolve() == folder / "a.svs"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_text_of_every_spreadsheet_is_read(folder, end, encoding):
    sheet = write(folder, *GOOD, end=end, encoding=encoding)
    assert read_samples(sheet) == read_samples(write(folder, *GOOD))


def test_both_byte_orders_of_utf_16_are_read(folder):
    sheet = folder / "samples.tsv"
    text = "\n".join(GOOD)
    sheet.write_bytes(codecs.BOM_UTF16_BE + text.encode("utf-16-be"))
    assert ids(read_samples(sheet)) == ["S1", "S2", "S3"]
    sheet.write_bytes(codecs.BOM_UTF16_LE + text.encode("utf-16-le"))
    assert ids(read_samples(sheet)) == ["S1", "S2", "S3"]


def test_blank_lines_are_ignored_but_counted(folder):
    sheet = write(
        folder,
        "",
        "\t\t\t",
        f"  {HEADER.replace('slide', ' slide ')}",
        "",
        *GOOD[1:3],
        " ",
        GOOD[3],
    )
    samples = read_samples(sheet)
    assert ids(samples) == ["S1", "S2", "S3"]
    assert [sample.row for sample in samples] == [5, 6, 8]


def test_white_space_in_names_is_normalised(folder):
    """Otherwise a patient could be in two splits, and labels could differ from those in tables."""
    sheet = write(
        folder,
        HEADER,
        "S1\tJ.  Doe\tlung cancer\ta.svs",
        "S2\tJ.\u00a0Doe\tlung\u00a0cancer\tb.svs",
    )
    assert {(s.patient, s.label) for s in read_samples(sheet)} == {("J. Doe", "lung cancer")}


def test_labels_are_sorted(folder):
    assert classes_of(read_samples(write(folder, *GOOD))) == ["luad", "lusc", "normal"]


def test_file_of_the_workflow_may_be_missing(folder):
    sheet = write(folder, HEADER, "S1\tP1\tluad\tlater/a.svs", "S2\tP2\tluad\tgone.svs")
    asked = []

    def may_be_missing(path: Path) -> bool:
        asked.append(path)
        return path.parent.name == "later"

    with pytest.raises(UserError, match=r"row 3: no file .*gone\.svs"):
        read_samples(sheet, may_be_missing=may_be_missing)
    assert asked == [folder / "later/a.svs", folder / "gone.svs"]


# --- Sheets of new slides


def test_new_slides_need_only_id_and_path(folder):
    samples = read_samples(write(folder, "slide\tpath", "N1\ta.svs", "N2\tb.svs"), labelled=False)
    assert [(s.slide, s.patient, s.label, s.split) for s in samples] == [
        ("N1", "N1", "", ""),
        ("N2", "N2", "", ""),
    ]


def test_labels_of_new_slides_are_ignored(folder):
    sheet = write(
        folder, "slide\tpath\tpatient\tlabel\tsplit\tmpp", "N1\ta.svs\tP1\tluad\ttest\t0.5"
    )
    (sample,) = read_samples(sheet, labelled=False)
    assert (sample.patient, sample.label, sample.split, sample.mpp) == ("P1", "", "", 0.5)


# --- Faults of the whole sheet


def refused(sheet: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_samples(sheet)
    return str(caught.value)


@pytest.mark.parametrize("line", [HEADER.replace("\t", ","), HEADER.replace("\t", ";")])
def test_other_separators_are_named(folder, line):
    message = refused(write(folder, line, "S1,P1,luad,a.svs"))
    assert "row 1 (the header)" in message
    assert "separated by commas or semicolons; must be tab-separated" in message


def test_missing_and_duplicate_columns_are_listed(folder):
    message = refused(write(folder, "Slide\tpatient\tpatient\tpath", "S1\tP1\tP1\ta.svs"))
    assert "column 'patient' appears twice" in message
    assert "column(s) slide, label missing; found: Slide, patient, patient, path" in message


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "column(s) slide, patient, label, path missing; found: nothing"),
        (b"\n\n \t \n", "column(s) slide, patient, label, path missing; found: nothing"),
        (HEADER.encode(), "no rows below the header; add one row per slide"),
        (b"slide\tpatient\nS1\tJos\xe9\n", "row 2: not utf-8-sig text (byte 0xe9); save the she"),
        (b"slide\rS1\rJos\xe9\r", "row 3: not utf-8-sig text (byte 0xe9)"),
        (b"slide\r\nS1\r\nJos\xe9\r\n", "row 3: not utf-8-sig text (byte 0xe9)"),
        (b"II*\0\x08\0\0\0", "contains zero bytes; not a text file"),
        (b"x" * 300_000, "column(s) slide, patient, label, path missing; found: "),
    ],
)
def test_file_that_is_no_sheet_is_refused(folder, content, fault):
    sheet = folder / "samples.tsv"
    sheet.write_bytes(content)
    message = refused(sheet)
    assert str(sheet) in message
    assert fault in message
    assert len(message) < 1000


def test_missing_sheet_or_folder_is_refused(folder):
    assert "gone.tsv: no such sample sheet" in refused(folder / "gone.tsv")
    assert "cannot be read: Is a directory" in refused(folder)


# --- Faults of rows


@pytest.mark.parametrize(
    ("rows", "messages"),
    [
        (["S1\tP1\tluad"], ["row 2: 3 cells, but 4 columns in the header"]),
        (["S1\tP1\tluad\ta.svs\t"], ["row 2: 5 cells, but 4 columns in the header"]),
        (["\tP1\tluad\ta.svs"], ["row 2: slide is empty"]),
        (["S1\t\tluad\ta.svs"], ["row 2: patient is empty"]),
        (["S1\tP1\t\ta.svs"], ["row 2: label is empty"]),
        (["S1\tP1\tluad\t"], ["row 2: path is empty"]),
        (["\t\t\ta.svs"], [f"row 2: {name} is empty" for name in ("slide", "patient", "label")]),
        # Two empty cells are not the same slide, nor the same patient, nor the same file.
        (["\tP1\tluad\t"] * 2,
         [f"row {row}: {name} is empty" for row in (2, 3) for name in ("slide", "path")]),
        (["S1\tP1\tluad\t", "S2\tP2\tluad\t"], ["row 2: path is empty", "row 3: path is empty"]),
        (["S\tP\u200b1\tluad\ta.svs"],
         [r"row 2: patient 'P\u200b1' contains an invisible character"]),
        (["S\tP1\tlu\u00adad\ta.svs"],
         [r"row 2: label 'lu\xadad' contains an invisible character"]),
    ],
)  # fmt: skip
def test_faulty_row_is_named_with_its_number(folder, rows, messages):
    assert faults(folder, HEADER, *rows) == messages


@pytest.mark.parametrize(
    "slide",
    [
        "a/b",
        "../a",
        ".a",
        "-a",
        "a b",
        "a:b",
        "ä",
        "a\\b",
        "a*",
        "x" * 151,
        "{slide}",
        '"S1"',
        "a'",
    ],
)
def test_unsafe_id_is_refused(folder, slide):
    (fault,) = faults(folder, HEADER, f"{slide}\tP1\tluad\ta.svs")
    assert fault.startswith(f"row 2: slide {slide!r} is unsafe as a file name; use up to 150")


@pytest.mark.parametrize("slide", ["a", "9", "A.b_c-d", "x" * 150, "TCGA-67-3772-01A-01-TS1.4e9a"])
def test_safe_id_is_accepted(folder, slide):
    assert ids(read_samples(write(folder, HEADER, f"{slide}\tP1\tluad\ta.svs"))) == [slide]


@pytest.mark.parametrize("mpp", ["0,5", "20x", "nan", "inf", "-0.5", "0", "0.009", "101", "µm"])
def test_implausible_mpp_is_refused(folder, mpp):
    (fault,) = faults(folder, f"{HEADER}\tmpp", f"S1\tP1\tluad\ta.svs\t{mpp}")
    assert fault == f"row 2: mpp {mpp!r} must be micrometres per pixel, a number in 0.01-100"


@pytest.mark.parametrize("split", ["Train", "validation", "0"])
def test_unknown_split_is_refused(folder, split):
    (fault,) = faults(folder, f"{HEADER}\tsplit", f"S1\tP1\tluad\ta.svs\t{split}")
    assert fault == f"row 2: split {split!r} must be train, valid, test or empty"


def test_missing_files_are_named_with_their_rows(folder):
    messages = faults(
        folder, HEADER, "S1\tP1\tluad\ta.svs", "S2\tP2\tluad\tx/b.svs", "S3\tP3\tluad\tg"
    )
    assert messages == [f"row 3: no file {folder}/x/b.svs", f"row 4: no file {folder}/g"]


def test_path_that_is_too_long_is_named(folder):
    (fault,) = faults(folder, HEADER, f"S1\tP1\tluad\t{'x' * 300}")
    assert fault.startswith("row 2: ")
    assert fault.endswith(": File name too long")


# --- Conflicts between rows


def test_duplicate_slide_is_refused(folder):
    rows = ["S1\tP1\tluad\ta.svs", "S2\tP2\tluad\tb.svs", "S1\tP1\tluad\ta.svs"]
    assert faults(folder, HEADER, *rows) == ["row 4: slide 'S1' is already in row 2"]


def test_ids_that_differ_only_in_case_are_refused(folder):
    rows = ["S1\tP1\tluad\ta.svs", "s1\tP2\tluad\tb.svs"]
    assert faults(folder, HEADER, *rows) == [
        "row 3: slide 's1' is already in row 2 as 'S1', which is the same name on some file systems"
    ]


def test_slide_of_two_patients_is_refused(folder):
    rows = ["S1\tP1\tluad\ta.svs", "S1\tP2\tluad\ta.svs"]
    assert faults(folder, HEADER, *rows) == [
        "row 3: slide 'S1' is already in row 2, there with patient 'P1', here with 'P2'"
    ]


def test_slide_with_two_labels_is_refused(folder):
    rows = ["S1\tP1\tluad\ta.svs", "S1\tP1\tlusc\ta.svs"]
    assert faults(folder, HEADER, *rows) == [
        "row 3: slide 'S1' is already in row 2, there with label 'luad', here with 'lusc'"
    ]


def test_file_under_two_names_is_refused(folder):
    (folder / "link.svs").symlink_to(folder / "a.svs")
    (folder / "way").symlink_to(folder)
    spelled = ["a.svs", "./a.svs", "x/../a.svs", f"{folder}/a.svs", "link.svs", "way/a.svs"]
    (folder / "x").mkdir()
    rows = [f"S{n}\tP{n}\tluad\t{path}" for n, path in enumerate(spelled)]
    assert faults(folder, HEADER, *rows) == [
        f"row {n + 2}: file {folder / spelled[n]} is already the file of slide 'S0' in row 2"
        for n in range(1, 6)
    ]


def test_patient_fixed_to_two_splits_is_refused(folder):
    rows = [
        "S1\tP1\tluad\ta.svs\ttrain",
        "S2\tP1\tluad\tb.svs\t",
        "S3\tP1\tluad\tc.svs\ttest",
        "S4\tP2\tluad\td.svs\tvalid",
        "S5\tP2\tluad\te.svs\tvalid",
    ]
    assert faults(folder, f"{HEADER}\tsplit", *rows) == [
        "row 4: patient 'P1' is fixed to several splits (train in row 2, test in row 4); "
        "all slides of a patient must be in the same split"
    ]


def test_empty_patients_are_not_the_same_patient(folder):
    rows = ["S1\t\tluad\ta.svs\ttrain", "S2\t\tluad\tb.svs\ttest"]
    messages = faults(folder, f"{HEADER}\tsplit", *rows)
    assert messages == ["row 2: patient is empty", "row 3: patient is empty"]


def test_label_with_two_spellings_is_refused(folder):
    rows = ["S1\tP1\tluad\ta.svs", "S2\tP2\tLUAD\tb.svs", "S3\tP3\tlusc\tc.svs"]
    assert faults(folder, HEADER, *rows) == [
        "row 3: one label is spelled in two ways: 'luad' in row 2, 'LUAD' in row 3"
    ]


@pytest.mark.parametrize("other", ["p1", "\uff301", "P 1"])  # lower case, full-width P, blank
def test_patient_with_two_spellings_is_refused(folder, other):
    """The hashes of the spellings differ, so the patient could be in two splits."""
    rows = ["S1\tP1\tluad\ta.svs", f"S2\t{other}\tluad\tb.svs", "S3\tP3\tlusc\tc.svs"]
    assert faults(folder, HEADER, *rows) == [
        f"row 3: one patient is spelled in two ways: 'P1' in row 2, {other!r} in row 3"
    ]


@pytest.mark.parametrize(
    ("other", "shown"),
    [
        ("P\u20111", "'P\u20111' (U+2011)"),  # non-breaking hyphen
        ("\u0420-1", "'\u0420-1' (U+0420)"),  # a Cyrillic letter
    ],
)
def test_code_points_of_look_alikes_are_shown(folder, other, shown):
    rows = ["S1\tP-1\tluad\ta.svs", f"S2\t{other}\tluad\tb.svs", "S3\tP3\tlusc\tc.svs"]
    assert faults(folder, HEADER, *rows) == [
        f"row 3: one patient is spelled in two ways: 'P-1' in row 2, {shown} in row 3"
    ]


def test_invisible_characters_are_refused(folder):
    rows = ["S1\tP1\tluad\ta.svs", "S2\tP\u034f1\tlusc\tb.svs"]  # a grapheme joiner
    assert faults(folder, HEADER, *rows)[0] == (
        "row 3: patient 'P\u034f1' contains an invisible character"
    )


def test_doubtful_names_are_warnings(folder):
    rows = ["S1\tP10\tluad\ta.svs", "S2\tP1O\tluad\tb.svs", "S3\tP3\tlusc\tc.svs"]
    assert sheet_warnings(read_samples(write(folder, HEADER, *rows))) == [
        "patients that differ only in characters that look alike (0 and O, 1 and I and l, m and "
        "rn): 'P10' in row 2, 'P1O' in row 3; if they are one patient, use one spelling"
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("{slide}.svs", "contains '{', which marks wildcards in Snakemake; rename the file or "),
        ("a}.svs", "contains '}', which marks wildcards in Snakemake; rename the file or "),
        (
            "a\x1b.svs",
            "contains '\\x1b', which breaks lines; rename the file or folder, or create ",
        ),
    ],
)
def test_path_with_wildcards_or_controls_is_refused(folder, name, expected):
    (folder / name).touch()
    (message,) = faults(folder, HEADER, f"S1\tP1\tluad\t{name}")
    assert message.startswith(f"row 2: path {str(folder / name)!r} {expected}")


def test_path_like_an_option_is_refused(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "-a.svs").touch()
    Path("samples.tsv").write_text(f"{HEADER}\nS1\tP1\tluad\t-a.svs\n")
    with pytest.raises(UserError, match=r"row 2: path '-a\.svs' starts with '-', like an opt"):
        read_samples(Path("samples.tsv"))
    assert read_samples(folder / "samples.tsv")


def test_loop_of_links_is_refused(folder):
    (folder / "one.svs").symlink_to("two.svs")
    (folder / "two.svs").symlink_to("one.svs")
    (folder / "round").symlink_to("round")
    rows = ["S1\tP1\tluad\tone.svs", "S2\tP2\tluad\ttwo.svs", "S3\tP3\tlusc\tround/c.svs"]
    assert faults(folder, HEADER, *rows) == [
        f"row {row}: {folder / name}: Too many levels of symbolic links"
        for row, name in ((2, "one.svs"), (3, "two.svs"), (4, "round/c.svs"))
    ]


def test_all_faults_are_listed_by_row(folder):
    rows = [
        "S1\tP1\tluad\ta.svs\t0.5\ttrain",
        "s1\tP1\tLuad\tb.svs\t\ttest",
        "a/b\t\tlusc\tgone.svs\t20x\tdev",
        "short",
        "S4\tP4\tlusc\ta.svs\t\t",
    ]
    messages = faults(folder, f"{HEADER}\tmpp\tsplit", *rows)
    assert [fault.split(":")[0] for fault in messages] == ["row 3"] * 3 + ["row 4"] * 5 + [
        "row 5",
        "row 6",
    ]


def test_message_lists_at_most_50_faults(folder):
    sheet = write(folder, HEADER, *["S1\tP1\tluad\tgone.svs"] * 5000)
    lines = refused(sheet).splitlines()
    assert lines[0] == f"{sheet}: 9999 fault(s)"
    assert len(lines) == 52
    assert lines[-1] == "  … and 9949 more"


@pytest.mark.parametrize("rows", [10, 100])
def test_jobs_do_not_check_slide_files(tmp_path, monkeypatch, rows):
    """The main process checks all of them; 30,000 jobs should not repeat it."""
    lines = [f"S{row}\tP{row}\tluad\tS{row}.svs" for row in range(rows)]
    sheet, looks = write(tmp_path, HEADER, *lines), []
    for name in ("stat", "lstat"):
        real = getattr(os, name)

        def counted(path, *args, real=real, **options):
            if str(path).endswith(".svs"):
                looks.append(path)
            return real(path, *args, **options)

        monkeypatch.setattr(os, name, counted)
    assert len(read_samples(sheet, look=False)) == rows
    assert looks == []
    with pytest.raises(UserError, match="no file"):
        read_samples(sheet)
    assert len(looks) == 2 * rows
