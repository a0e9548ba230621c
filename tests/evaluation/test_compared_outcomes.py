"""Predicted numbers and risks of two models are compared on the same patients."""

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from gigatile.cohort.outcomes import Outcome
from gigatile.errors import UserError
from gigatile.evaluation import compared_outcomes
from gigatile.evaluation.compared_outcomes import compare_outcomes
from gigatile.evaluation.compared_runs import compare_runs
from gigatile.evaluation.outcomes import evaluate_outcomes, median_risk
from gigatile.evaluation.survival import concordance
from gigatile.evaluation.tested_runs import read_tested
from gigatile.files import sha256_of
from gigatile.json_models import write_model
from gigatile.report.paper import write_comparison
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.tables import write_table

SETTINGS = EvaluationSettings(resamples=1000)
COLUMNS = ["slide", "patient", "label", "tiles", "predicted"]


def cohort(
    seed: int, patients: int, noise: tuple[float, float], kind: str, slides: int = 1
) -> list[pd.DataFrame]:
    """Return the predictions of two models with errors of these sizes."""
    random = np.random.default_rng(seed)
    signal = random.normal(size=patients)
    if kind == "number":
        outcomes = [Outcome(float(v)) for v in signal + 0.5 * random.normal(size=patients)]
    else:
        event, end = random.exponential(np.exp(-signal)), random.exponential(1.5, patients)
        pairs = zip(np.minimum(event, end), event <= end, strict=True)
        outcomes = [Outcome(float(time), bool(seen)) for time, seen in pairs]
    tables = []
    for size in noise:
        predicted = signal + size * random.normal(size=patients)
        rows = [
            [f"S{k}-{n}", f"P{k}", str(outcomes[k]), 9, float(predicted[k] + 0.2 * n)]
            for k in range(patients)
            for n in range(slides)
        ]
        tables.append(pd.DataFrame(rows, columns=COLUMNS))
    return tables


@pytest.mark.parametrize("kind", ["number", "survival"])
def test_figures_are_those_of_the_evaluation(kind):
    first, second = cohort(1, 40, (0.5, 1.0), kind, slides=2)
    figures = compare_outcomes(first, second.sample(frac=1, random_state=1), SETTINGS)
    own = [evaluate_outcomes(table, median_risk(table), SETTINGS, {}) for table in (first, second)]
    expected = {"concordance": [metrics.concordance.value for metrics in own]}
    if kind == "number":
        errors = [metrics.numbers.mean_absolute_error.value for metrics in own]
        expected["mean absolute error"] = errors
    assert {figure.name: [figure.first, figure.second] for figure in figures} == {
        name: pytest.approx(values, abs=1e-6) for name, values in expected.items()
    }
    turned = compare_outcomes(second, first, SETTINGS)
    for figure, other in zip(figures, turned, strict=True):
        assert figure.difference.low == pytest.approx(-other.difference.high, abs=1e-6)
        assert figure.p == pytest.approx(other.p)


def test_tests_are_those_of_plain_loops():
    first, second = cohort(2, 25, (0.5, 1.5), "number", slides=2)
    area, errors = compare_outcomes(first, second, SETTINGS)
    values = first["label"].astype(float).to_numpy()

    def difference(kept: np.ndarray) -> float:
        shares = [
            concordance(-table["predicted"].to_numpy()[kept], values[kept], kept[kept])
            for table in (first, second)
        ]
        return shares[0] - shares[1]

    patients = first["patient"].to_numpy()
    left = np.array([difference(patients != name) for name in np.unique(patients)])
    variance = 24 / 25 * ((left - left.mean()) ** 2).sum()
    z = abs(area.first - area.second) / np.sqrt(variance)
    assert area.p == pytest.approx(2 * stats.norm.sf(z))
    gap = (first["predicted"] - values).abs() - (second["predicted"] - values).abs()
    means = gap.groupby(patients).mean()
    assert errors.p == pytest.approx(stats.wilcoxon(means).pvalue)
    assert errors.difference.value == pytest.approx(gap.mean(), abs=1e-6)


@pytest.mark.parametrize("kind", ["number", "survival"])
def test_models_that_are_alike_seldom_differ_and_intervals_cover(kind):
    """Of 100 cohorts with two equally good models."""
    differ, covered = {}, {}
    for seed in range(100):
        for figure in compare_outcomes(*cohort(seed, 20, (1.0, 1.0), kind), SETTINGS):
            name, interval = figure.name, figure.difference
            differ[name] = differ.get(name, 0) + (figure.p < 0.05)
            covered[name] = covered.get(name, 0) + (interval.low <= 0 <= interval.high)
    assert max(differ.values()) <= 11 and min(covered.values()) >= 93, (differ, covered)


def test_a_worse_model_is_found_and_an_equal_one_is_not():
    for figure in compare_outcomes(*cohort(3, 80, (0.1, 2.0), "number"), SETTINGS):
        assert figure.p < 0.001
        assert figure.difference.low * figure.difference.high > 0, "0 is outside"
    first, _ = cohort(3, 30, (1.0, 1.0), "survival")
    (same,) = compare_outcomes(first, first, SETTINGS)
    assert (same.difference.value, same.p) == (0, 1)
    few = first[:3]
    (figure,) = compare_outcomes(few, few, SETTINGS)
    assert figure.difference.no_interval is not None


def build(folder: Path, table: pd.DataFrame) -> Path:
    """Write the test results of a run."""
    (folder / "evaluation").mkdir(parents=True)
    slides = folder / "evaluation/slides.tsv"
    write_table(slides, COLUMNS, table.astype(object).to_numpy().tolist())
    sums = {"evaluation/slides.tsv": sha256_of(slides)}
    metrics = evaluate_outcomes(table, median_risk(table), SETTINGS, sums)
    write_model(folder / "evaluation/metrics.json", metrics)
    return folder


@pytest.mark.parametrize(
    ("kind", "said"), [("number", "Wilcoxon's signed-rank test"), ("survival", "(Harrell)")]
)
def test_runs_are_compared_on_their_common_slides(tmp_path, kind, said):
    tables = cohort(5, 30, (0.5, 1.0), kind)
    runs = [build(tmp_path / "one", tables[0]), build(tmp_path / "two", tables[1][2:])]
    compared = compare_runs(runs)
    assert (compared.kind, compared.slides, compared.left_out) == (
        *(kind, {"two": 28}, {"two": ["S0-0", "S1-0"]}),
    )
    expected = compare_outcomes(tables[1][2:], tables[0][2:], compared_settings(compared))
    assert [figure.p for figure in compared.figures] == [figure.p for figure in expected]
    write_comparison(compared, tmp_path / "comparison")
    methods = (tmp_path / "comparison/methods.txt").read_text()
    assert said in methods and "DeLong" not in methods


def compared_settings(compared) -> EvaluationSettings:
    return EvaluationSettings(resamples=compared.resamples, seed=compared.seed)


def test_what_does_not_belong_together_is_refused(tmp_path):
    numbers, times = (cohort(5, 30, (0.5, 1.0), kind)[0] for kind in ("number", "survival"))
    first = build(tmp_path / "first", numbers)
    of_times = build(tmp_path / "times", times)
    with pytest.raises(UserError, match="times predicts outcomes of the kind survival, first numb"):
        compare_runs([first, of_times])
    edited = tmp_path / "edited"
    shutil.copytree(first, edited)
    path = edited / "evaluation/slides.tsv"
    path.write_text(re.sub(r"\tP3\t", "\tP4\t", path.read_text()))
    with pytest.raises(UserError, match=r"computed from another version of evaluation/slides.tsv"):
        compare_runs([first, edited])
    other = build(tmp_path / "other", numbers.assign(patient=numbers["patient"] + "x"))
    with pytest.raises(UserError, match="slide S0-0 has the patient 'P0' in first and 'P0x'"):
        compare_runs([first, other])
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match=r"first predicts outcomes, .*none does not"):
        compare_runs([first, tmp_path / "none"])
    with pytest.raises(UserError, match="runs of the same name"):
        compare_runs([first, first])
    with pytest.raises(UserError, match="first: predicts numbers or survival; name a run that cla"):
        read_tested([first, other])


def test_patients_that_are_left_out_in_parts_give_the_same_p(monkeypatch):
    first, second = cohort(4, 30, (0.5, 1.0), "survival", slides=2)
    (whole,) = compare_outcomes(first, second, SETTINGS)
    monkeypatch.setattr(compared_outcomes, "_AT_ONCE", 7)
    (parts,) = compare_outcomes(first, second, SETTINGS)
    assert parts.p == pytest.approx(whole.p, rel=1e-9)
