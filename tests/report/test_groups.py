"""The metrics of sites, scanners and other groups of test slides and cases."""

import json
import re
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from case_runs import CasePlan, build_case_run, case_cohort
from sklearn.metrics import accuracy_score, roc_auc_score
from slide_runs import CLASSES, Plan, build_run, cohort
from test_self_contained import Page
from written import CASES, SLIDES, sheet_of_cases

from gigatile.errors import UserError
from gigatile.evaluation.metrics import evaluate
from gigatile.files import sha256_of, write_json
from gigatile.report import write_report
from gigatile.report.groups import SHOWN
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.tables import read_table

Table = dict[str, list[str]]


def write_sheet(run: Path, plans: list[Plan], **columns: dict[str, str]) -> Path:
    """Write a sheet with further columns, whose values are given by slide."""
    sheet = run.parent / "samples.tsv"
    rows = [["slide", "patient", "label", "path", *columns]]
    for plan in plans:
        values = [of_slide.get(plan.slide, "") for of_slide in columns.values()]
        rows.append([plan.slide, plan.patient, plan.label, f"{plan.slide}.svs", *values])
    sheet.write_text("\n".join(map("\t".join, rows)) + "\n")
    splits = json.loads((run / "splits.json").read_text())
    write_json(run / "splits.json", splits | {"sheet_sha256": sha256_of(sheet)})
    return sheet


def report(run: Path, sheet: Path | None, *columns: str) -> Page:
    files = {name: run / path for name, path in SLIDES.inputs.items()}
    write_report(SLIDES, files, run / "report", "Demo", sheet, columns)
    return Page(run / "report/index.html")


def groups(page: Page) -> dict[str, Table]:
    """Return the cells of each row of the section, by column and value."""
    match = re.search(r'<section aria-labelledby="groups">(.*?)</section>', page.html, re.DOTALL)
    if match is None:
        return {}
    tables = re.findall(r"<caption>By (.*?)\..*?<tbody>(.*?)</tbody>", match[1], re.DOTALL)
    row = re.compile(r'<th scope="row">(.*?)</th>(.*?)</tr>', re.DOTALL)
    return {
        name: {unescape(value): cells(text) for value, text in row.findall(body)}
        for name, body in tables
    }


def cells(text: str) -> list[str]:
    plain = (re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<td.*?</td>", text, re.DOTALL))
    return [" ".join(unescape(cell).split()) for cell in plain]


@pytest.fixture
def plans() -> list[Plan]:
    return cohort()


def test_metrics_of_a_group_are_those_of_its_slides(tmp_path: Path, plans: list[Plan]) -> None:
    run = build_run(tmp_path / "run", plans)
    women = ("S03", "S03b", "S13", "S23")
    sex = {plan.slide: "f" if plan.slide in women else "m" for plan in plans}
    shown = groups(report(run, write_sheet(run, plans, sex=sex), "sex"))
    rows = read_table(run / "evaluation/slides.tsv")
    assert shown["sex"].keys() == {"f", "m"}
    for value, (trained, patients, slides, accuracy, _, auc, _) in shown["sex"].items():
        of_group = [row for row in rows if sex[row["slide"]] == value]
        truth = [row["label"] for row in of_group]
        scores = np.array([[float(row[f"p_{name}"]) for name in CLASSES] for row in of_group])
        expected = accuracy_score(truth, [row["call_mean"] for row in of_group])
        assert accuracy == f"{expected:.3f}"
        by_class = [
            roc_auc_score([label == name for label in truth], scores[:, number])
            for number, name in enumerate(CLASSES)
        ]
        assert auc == f"{np.mean(by_class):.3f}"
        assert int(slides) == len(of_group)
        assert int(patients) == len({row["patient"] for row in of_group})
        assert trained == ("0" if value == "f" else "6")


def test_one_group_has_the_metrics_of_the_evaluation(tmp_path: Path, plans: list[Plan]) -> None:
    """Also its intervals, if metrics.json was computed with the same settings."""
    run = build_run(tmp_path / "run", plans)
    slides = pd.read_csv(run / "evaluation/slides.tsv", sep="\t")
    expected = evaluate(slides, CLASSES, EvaluationSettings(resamples=1000), {}).slide
    sheet = write_sheet(run, plans, stain={plan.slide: "H&E" for plan in plans})
    (row,) = groups(report(run, sheet, "stain"))["stain"].values()
    for number, interval in ((3, expected.accuracy.mean_call), (5, expected.roc_auc.macro)):
        assert row[number] == f"{interval.value:.3f}"
        if interval.low is not None:
            assert f"{interval.low:.3f}" in row[number + 1]
        else:
            assert "patients" in row[number + 1]


def test_undefined_metric_has_its_reason(tmp_path: Path, plans: list[Plan]) -> None:
    run = build_run(tmp_path / "run", plans)
    site = {plan.slide: plan.label for plan in plans}
    shown = groups(report(run, write_sheet(run, plans, site=site)))["site"]
    assert shown["adeno"][5] == "not defined"
    assert shown["adeno"][6] == "no test slide of class “normal”, “squamous”"


def test_scanners_are_compared_without_a_setting(tmp_path: Path, plans: list[Plan]) -> None:
    for plan in plans:
        if plan.reason is None:
            plan.scanner = "aperio A" if plan.slide[2] == "3" else "leica B"
    shown = groups(report(build_run(tmp_path / "run", plans), None))
    assert shown["scanner"].keys() == {"aperio A", "leica B"}
    assert shown["scanner"]["leica B"][0] == "6"


@pytest.mark.parametrize("scanner", [None, "aperio A"])
def test_there_is_no_section_without_groups(tmp_path: Path, plans, scanner: str | None) -> None:
    """One site, and one scanner or none; a slide that cannot be opened has no scanner."""
    for plan in plans:
        plan.scanner = None if plan.reason else scanner
    page = report(build_run(tmp_path / "run", plans), None)
    assert groups(page) == {} and "Metrics by group" not in page.text


def test_values_of_the_sheet_are_escaped(tmp_path: Path, plans: list[Plan]) -> None:
    run = build_run(tmp_path / "run", plans)
    evil = "<script>alert(1)</script>"
    column = '--help "x" <u>'
    sheet = write_sheet(run, plans, **{column: {"S03": evil}})
    page = report(run, sheet, column)
    assert "<script>alert" not in page.html and "<u>" not in page.html
    (shown,) = groups(page).values()
    assert list(shown) == [evil, "not given"]


def test_at_most_so_many_groups_are_shown(tmp_path: Path) -> None:
    plans = [
        *(Plan(f"A{k}", f"P{k}", CLASSES[k % 3], split, columns=3, rows=3)
          for k, split in enumerate(["train"] * 3 + ["valid"] * 3)),
        *(Plan(f"T{k}", f"Q{k}", CLASSES[k % 3], "test", columns=3, rows=3) for k in range(44)),
        Plan("T44", "Q44", CLASSES[0], "test", columns=3, rows=3),
    ]  # fmt: skip
    run = build_run(tmp_path / "run", plans)
    ward = {plan.slide: plan.slide for plan in plans} | {"T44": "T43"}
    page = report(run, write_sheet(run, plans, ward=ward), "ward")
    shown = groups(page)["ward"]
    assert len(shown) == SHOWN and shown["T43"][1] == "2"
    assert "The 40 groups with the most test patients; 4 others are not shown." in page.text


def test_unknown_columns_are_named(tmp_path: Path, plans: list[Plan]) -> None:
    run = build_run(tmp_path / "run", plans)
    sheet = write_sheet(run, plans, sex={})
    with pytest.raises(UserError) as raised:
        report(run, sheet, "sex", "age", "Sex")
    assert str(raised.value) == (
        f"report.group_by: {sheet} has no column 'age', 'Sex'; its columns are slide, patient, "
        "label, path, sex"
    )


def case_report(run: Path) -> Page:
    files = {name: run / path for name, path in CASES.inputs.items()}
    write_report(CASES, files, run / "report", "Demo", sheet_of_cases(run), ("split",))
    return Page(run / "report/index.html")


def test_cases_are_compared_by_site_and_column(tmp_path: Path) -> None:
    plans: list[CasePlan] = case_cohort()
    run = build_case_run(tmp_path / "run", plans)
    page = case_report(run)
    shown = groups(page)
    metrics = json.loads((run / "evaluation/metrics.json").read_text())
    dice = metrics["dice"]["mean"]
    assert list(shown) == ["site", "split"]
    (row,) = shown["split"].values()
    assert row[3] == f"{dice['value']:.3f}"
    assert list(shown["site"]) == ["south", "not given"]
    rows = [row for row in read_table(run / "evaluation/cases.tsv") if row["case"] == "C4"]
    south = shown["site"]["south"]
    assert south[:3] == ["0", "1", "1"]
    dice = np.mean([float(row["dice"]) for row in rows if row["dice"]])
    assert south[3] == f"{dice:.3f}"
