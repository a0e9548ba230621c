"""The table of cases, and the means over the cases of a cohort with their intervals."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from gigatile.errors import UserError
from gigatile.evaluation.segmentation import (
    COLUMNS,
    METRICS,
    CaseScores,
    RegionScores,
    evaluate_cases,
    read_cases,
    score_case,
    write_cases,
)
from gigatile.settings.evaluate import EvaluationSettings

REGIONS = ("whole", "core")
FEWEST = EvaluationSettings(resamples=1000)


def metrics_of(table, settings=FEWEST) -> dict:
    """Return the content of metrics.json."""
    return evaluate_cases(table, REGIONS, settings, inputs={}).to_json()


def case_scores(rows) -> list[CaseScores]:
    """Return the scores of cases from rows for each case and region, in order."""
    cases = {}
    for row in rows:
        scores = RegionScores(*(row[name] for name in COLUMNS[3:]))
        cases.setdefault(row["case"], CaseScores(row["case"], row["patient"], {}))
        cases[row["case"]].regions[row["region"]] = scores
    return list(cases.values())


def cohort(patients=20, per_patient=2, seed=0):
    random = np.random.default_rng(seed)
    rows = []
    for patient in range(patients):
        skill = random.uniform(0.3, 0.9)
        for case in range(per_patient):
            for region in REGIONS:
                missing = region == "core" and patient % 4 == 0
                rows.append(
                    {
                        "case": f"c{patient}-{case}",
                        "patient": f"p{patient}",
                        "region": region,
                        "dice": skill + random.uniform(-0.1, 0.1),
                        "hd95_mm": 20 * (1 - skill) + random.random(),
                        "sensitivity": None if missing else skill,
                        "specificity": 0.9 + 0.1 * skill,
                        "diagonal_mm": 373.0,
                        "truth_ml": 0.0 if missing else 12.5,
                        "predicted_ml": 11.0,
                        "lesion_dice": skill,
                        "lesion_hd95_mm": 30 * (1 - skill),
                        "lesions": 3,
                        "missed_lesions": int(skill < 0.5),
                        "false_positive_lesions": 2,
                        "empty": "truth" if missing else "",
                    }
                )
    return rows


def test_written_cases_can_be_read(tmp_path):
    path = tmp_path / "cases.tsv"
    rows = cohort()
    rows[0]["empty"] = "both"
    write_cases(case_scores(rows), path)
    lines = path.read_text().splitlines()
    assert lines[0] == "\t".join(COLUMNS)
    assert lines[0].startswith("case\tpatient\tregion\tdice\thd95_mm\tsensitivity\tspecificity\t")
    assert len(lines) == 1 + len(rows) and lines[2].split("\t")[5] == ""
    table_read = read_cases(path)
    assert list(table_read.columns) == list(COLUMNS)
    for name in COLUMNS:
        expected = pd.DataFrame(rows)[name]
        if name in ("case", "patient", "region", "empty"):
            assert table_read[name].tolist() == expected.tolist()
        else:
            np.testing.assert_allclose(table_read[name], expected.astype(float), atol=5e-7)
    from_file, from_rows = metrics_of(table_read), metrics_of(pd.DataFrame(rows))
    for region in REGIONS:
        for metric in METRICS:
            first, second = (m[metric]["per_region"][region] for m in (from_file, from_rows))
            assert first == pytest.approx(second, abs=2e-6)


def test_scores_of_a_case_are_written(tmp_path):
    empty = np.zeros((4, 4, 4), np.uint8)
    case = CaseScores(
        "c", "p", score_case(empty, empty, (1, 1, 1), {"tumour": 1}, {"whole_tumour": ("tumour",)})
    )
    write_cases([case], tmp_path / "cases.tsv")
    line = (tmp_path / "cases.tsv").read_text().splitlines()[1]
    numbers = "1.000000\t0.000000\t\t1.000000\t6.928203\t0.000000\t0.000000"
    numbers += "\t1.000000\t0.000000\t0\t0\t0"
    assert line == f"c\tp\twhole_tumour\t{numbers}\tboth"


def test_damaged_table_is_refused(tmp_path):
    path = tmp_path / "cases.tsv"
    write_cases(case_scores(cohort(2)), path)
    path.write_text(path.read_text().replace("12.500000", "twelve"))
    with pytest.raises(UserError, match=r"cases\.tsv: column truth_ml .*twelve.*delete"):
        read_cases(path)


def test_means_are_over_the_cases_with_a_defined_metric():
    table = pd.DataFrame(cohort())
    metrics = metrics_of(table)
    assert (metrics["n"], metrics["patients"], metrics["regions"]) == (40, 20, list(REGIONS))
    intervals = metrics["intervals"]
    assert (metrics["schema"], intervals["resamples"], intervals["seed"]) == (2, 1000, 1)
    for metric in METRICS:
        means = table.assign(value=table[metric].astype(float)).groupby("region")["value"]
        for region in REGIONS:
            interval = metrics[metric]["per_region"][region]
            assert interval["value"] == pytest.approx(means.mean()[region], abs=1e-6)
            assert interval["n"] == means.count()[region]
            assert (
                interval["low"] < interval["value"] < interval["high"]
                and interval["no_interval"] is None
            )
        mean = metrics[metric]["mean"]
        assert mean["value"] == pytest.approx(means.mean().mean(), abs=1e-6)
    assert metrics["sensitivity"]["per_region"]["core"]["n"] == 30
    assert metrics["sensitivity"]["mean"]["n"] == 30
    assert metrics["dice"]["mean"]["n"] == 40
    assert metrics["empty"] == {
        "whole": {"truth": 0, "prediction": 0, "both": 0},
        "core": {"truth": 10, "prediction": 0, "both": 0},
    }


def test_interval_weights_patients_and_an_unseen_one():
    """Equal to weights drawn in a loop; the sensitivity of the unseen patient is 0 or 1."""
    table = pd.DataFrame(cohort(patients=12, per_patient=3))
    metrics = metrics_of(table, EvaluationSettings(resamples=10_000))
    random = np.random.default_rng(1)
    core = table[table["region"] == "core"].assign(
        sensitivity=lambda t: t["sensitivity"].astype(float)
    )
    of_patient = [cases["sensitivity"].to_numpy() for _, cases in core.groupby("patient")]
    defined = np.array([interval.mean() for interval in of_patient if not np.isnan(interval).any()])
    assert len(defined) == 9
    means = [
        [np.average([*defined, end], weights=random.exponential(size=10)) for end in (0, 1)]
        for _ in range(4000)
    ]
    interval = metrics["sensitivity"]["per_region"]["core"]
    worst, best = np.array(means).T
    assert interval["patients"] == 9 and interval["n"] == 27
    assert interval["low"] == pytest.approx(np.quantile(worst, 0.025), abs=0.02)
    assert interval["high"] == pytest.approx(np.quantile(best, 0.975), abs=0.02)


def test_distance_of_the_unseen_patient_is_at_most_the_largest_diagonal():
    """The distance is 5 mm in all cases, but the region may be missed in an unseen patient."""
    rows = [row | {"hd95_mm": 5.0} for row in cohort(patients=5, per_patient=1)]
    rows[0]["diagonal_mm"] = 400.0
    metrics = metrics_of(pd.DataFrame(rows), EvaluationSettings(resamples=10_000))
    mean = metrics["hd95_mm"]["mean"]
    exact = binomtest(5, 5).proportion_ci(method="exact").low
    assert mean["low"] == pytest.approx(5 * exact, abs=0.2)
    assert mean["high"] == pytest.approx(5 * exact + 400 * (1 - exact), abs=4)


def test_too_few_patients_have_a_reason_instead_of_an_interval():
    metrics = metrics_of(pd.DataFrame(cohort(patients=6, per_patient=3)))
    assert metrics["dice"]["mean"]["low"] is not None
    why = "fewer than 5 patients (4)"
    for interval in (metrics["sensitivity"]["mean"], metrics["sensitivity"]["per_region"]["core"]):
        assert (interval["low"], interval["high"], interval["no_interval"]) == (None, None, why)
        assert (interval["patients"], interval["n"]) == (4, 12) and interval["value"] is not None
    assert metrics["sensitivity"]["per_region"]["whole"]["low"] is not None


def test_copies_of_cases_do_not_narrow_the_interval():
    rows = cohort(per_patient=1)
    copies = [row | {"case": f"{row['case']}-{copy}"} for row in rows for copy in range(9)]
    single, nine = (metrics_of(pd.DataFrame(each))["dice"]["mean"] for each in (rows, copies))
    assert nine["high"] - nine["low"] == pytest.approx(single["high"] - single["low"], rel=1e-3)


def test_intervals_depend_on_the_seed_not_on_the_row_order():
    table = pd.DataFrame(cohort())
    expected = metrics_of(table)
    assert metrics_of(table.sample(frac=1, random_state=3)) == expected
    other = metrics_of(table, EvaluationSettings(resamples=1000, seed=2))
    assert other["dice"]["mean"]["value"] == expected["dice"]["mean"]["value"]
    assert other["dice"]["mean"]["low"] != expected["dice"]["mean"]["low"]


def test_metric_that_is_undefined_for_all_cases_is_null():
    table = pd.DataFrame(cohort(patients=1, per_patient=1))
    metrics = metrics_of(table)
    assert "NaN" not in json.dumps(metrics, allow_nan=False)
    nothing = dict.fromkeys(("value", "low", "high")) | {"patients": 0, "n": 0}
    nothing["no_interval"] = "the figure is not defined"
    assert metrics["sensitivity"]["per_region"]["core"] == nothing
    assert metrics["sensitivity"]["mean"] == nothing
    whole = metrics["sensitivity"]["per_region"]["whole"]
    assert whole["value"] is not None and whole["n"] == 1
    assert whole["no_interval"] == "fewer than 5 patients (1)"


def test_cohort_without_cases_has_no_metrics():
    table = pd.DataFrame(columns=list(COLUMNS))
    metrics = metrics_of(table)
    assert json.dumps(metrics, allow_nan=False)
    assert metrics["n"] == metrics["patients"] == 0
    assert metrics["dice"]["mean"]["value"] is None


def test_case_without_one_row_for_each_region_is_refused():
    rows = cohort(3)
    for faulty in (rows[1:], [*rows, rows[0]], [*rows[:-1], rows[-1] | {"region": "other"}]):
        with pytest.raises(
            UserError, match=r"case c\S+: has rows of .*must be one each of whole, core"
        ):
            metrics_of(pd.DataFrame(faulty))
