"""Sheets with numbers or times to events, and how their patients are split."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigatile.cohort.outcomes import OUTCOME_SHEET, Outcome, check_outcomes, parse_outcome
from gigatile.cohort.samples import Sample
from gigatile.cohort.sheet_reading import read_sheet
from gigatile.cohort.splits import assign, check_labels, folds_of, prove_splits, rows_of_splits
from gigatile.errors import UserError
from gigatile.settings.encoder import EncoderSettings
from gigatile.settings.split import SPLITS, SplitSettings
from gigatile.tasks import find_task


def sheet(folder: Path, header: str, *rows: str) -> list[Sample]:
    path = folder / "samples.tsv"
    path.write_text("\n".join([header, *rows]).replace(" ", "\t") + "\n")
    samples = read_sheet(path, OUTCOME_SHEET, look=False)
    check_outcomes(path, samples)
    return samples


def test_numbers_and_times_are_labels(tmp_path):
    numbers = sheet(tmp_path, "slide patient path value", "A P a.svs 12.50", "B Q b.svs -1e-3")
    assert [(each.label, each.stratum) for each in numbers] == [("12.5", ""), ("-0.001", "")]
    times = sheet(tmp_path, "slide patient path time event", "A P a.svs 3 1", "B Q b.svs 4.25 0")
    assert [(each.label, each.stratum) for each in times] == [
        ("3.0 event", "event"),
        ("4.25 censored", "censored"),
    ]


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("slide path value", "A a.svs 3"),
        ("slide path value", "A a.svs unknown"),
        ("slide path time event", "A a.svs 3 1"),
        ("slide path time event value", "A a.svs x x x"),
        ("slide path", "A a.svs"),
    ],
)
def test_outcomes_of_new_slides_are_ignored(tmp_path, header, row):
    path = tmp_path / "new.tsv"
    path.write_text(f"{header}\n{row}\n".replace(" ", "\t"))
    settings = SimpleNamespace(encoder=EncoderSettings())
    read = find_task("slide_outcome").read_sheet
    (sample,) = read(path, settings, False, lambda file: True, False)
    assert (sample.slide, sample.patient, sample.label, sample.stratum) == ("A", "A", "", "")


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([None, True, False]))
def test_text_of_an_outcome_is_read_as_the_same(value, event):
    outcome = Outcome(value, event)
    assert parse_outcome(str(outcome)) == outcome


@pytest.mark.parametrize(
    "label", ["", "luad", "nan", "inf event", "3 died", "3 event ", "3  event"]
)
def test_other_labels_are_no_outcomes(label):
    with pytest.raises(UserError, match="must be a number, or a time followed by"):
        parse_outcome(label)


SURVIVAL = "slide patient path time event"


@pytest.mark.parametrize(
    ("header", "rows", "faults"),
    [
        ("slide patient path", ["A P a.svs"], ["column(s) value missing"]),
        ("slide patient path time", ["A P a.svs 3"], ["column(s) event missing"]),
        (
            "slide patient path value",
            ["A P a.svs x", "B Q b.svs inf"],
            ["row 2: value 'x': must be a number", "row 3: value 'inf'"],
        ),
        (
            SURVIVAL,
            ["A P a.svs 0 1", "B Q b.svs -3 yes", "C R c.svs 2 1"],
            ["row 2: time '0': must be", "row 3: time '-3'", "row 3: event 'yes': must be 1, or 0"],
        ),
        (SURVIVAL + " value", ["A P a.svs 3 1 2"], ["must have one of both"]),
        (
            SURVIVAL,
            ["A P a.svs 3 1", "B P b.svs 3 0"],
            ["patient 'P' has several outcomes: 3.0 event in row 2, 3.0 censored in row 3"],
        ),
        (SURVIVAL, ["A P a.svs 3 0", "B Q b.svs 3 0"], ["no row has event 1"]),
        ("slide patient path value", ["A P a.svs 3", "B Q b.svs 3"], ["nothing to learn"]),
    ],
)
def test_faults_are_listed(tmp_path, header, rows, faults):
    with pytest.raises(UserError) as caught:
        sheet(tmp_path, header, *rows)
    for fault in faults:
        assert fault in str(caught.value), str(caught.value)


def cohort(patients: int, events: int) -> list[Sample]:
    rows = []
    for number in range(patients):
        outcome = Outcome(1.0 + number, number < events)
        name = f"S{number}"
        rows.append(Sample(name, f"P{number}", str(outcome), Path(name), None, "", "", number + 2))
    return [Sample(**{**vars(row), "stratum": parse_outcome(row.label).stratum}) for row in rows]


def test_folds_have_the_same_number_of_events():
    members = cohort(40, 15)
    settings = SplitSettings(folds=5)
    folds = folds_of(members, settings)
    events = Counter(folds[m.patient] for m in members if m.stratum == "event")
    assert set(events.values()) == {3}
    for fold in range(1, 6):
        splits = assign(members, settings.model_copy(update={"fold": fold}))
        check_labels(members, splits, Path("x.tsv"))
        proof = prove_splits(members, splits, settings)
        assert proof.splits["test"].by_label["event"].patients == 3
    rows = rows_of_splits(members, settings, *SPLITS)
    assert {row["label"] for row in rows} == {member.label for member in members}


def test_each_split_needs_an_event_and_no_censored_patient():
    members = cohort(30, 30)
    check_labels(members, assign(members, SplitSettings()), Path("x.tsv"))
    few = cohort(30, 1)
    with pytest.raises(UserError, match="no patient with label 'event' in"):
        check_labels(few, assign(few, SplitSettings()), Path("x.tsv"))


def test_numbers_need_a_patient_in_each_split():
    random = np.random.default_rng(0)
    rows = [
        Sample(f"S{n}", f"P{n}", repr(float(random.normal())), Path(f"{n}"), None, "", "", n + 2)
        for n in range(30)
    ]
    numbers = [Sample(**{**vars(row), "stratum": ""}) for row in rows]
    check_labels(numbers, assign(numbers, SplitSettings()), Path("x.tsv"))
    with pytest.raises(UserError, match="no patient in"):
        check_labels(numbers, dict.fromkeys([m.patient for m in numbers], "train"), Path("x.tsv"))
