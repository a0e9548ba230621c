"""Paired comparisons equal their definitions, cover what they say, and refuse what differs."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score
from tested_runs import SETTINGS, names, predictions_of, write_run

from gigatile.errors import UserError
from gigatile.evaluation.compared_runs import compare_runs
from gigatile.evaluation.comparison import (
    auc_influence,
    compare_models,
    delong,
    holm,
    mcnemar,
)
from gigatile.evaluation.metrics import evaluate
from gigatile.files import sha256_of
from gigatile.report.paper import latex_of, methods_of, write_comparison
from gigatile.tables import read_table, write_table


def delong_by_definition(positive: np.ndarray, first: np.ndarray, second: np.ndarray) -> float:
    """Return the p-value from the matrices S10 and S01 of the paper, pair by pair."""
    components = []
    for scores in (first, second):
        kernel = np.array(
            [[(a > b) + 0.5 * (a == b) for b in scores[~positive]] for a in scores[positive]]
        )
        components.append((kernel.mean(axis=1), kernel.mean(axis=0)))
    s10 = np.cov([each[0] for each in components])
    s01 = np.cov([each[1] for each in components])
    covariance = s10 / positive.sum() + s01 / (~positive).sum()
    contrast = np.array([1.0, -1.0])
    z = (components[0][0].mean() - components[1][0].mean()) / np.sqrt(
        contrast @ covariance @ contrast
    )
    return float(2 * stats.norm.sf(abs(z)))


@pytest.mark.parametrize("seed", range(8))
def test_delong_is_that_of_the_paper(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(12, 60))
    positive = rng.permutation(np.arange(count) < count // 3)
    # Rounded, so that there are ties.
    first, second = (np.round(rng.normal(size=count) + positive, 1) for _ in range(2))
    patients = np.arange(count)
    influences = [auc_influence(positive, scores, patients) for scores in (first, second)]
    for influence, scores in zip(influences, (first, second), strict=True):
        assert influence.area == pytest.approx(roc_auc_score(positive, scores))
    expected = delong_by_definition(positive, first, second)
    assert delong(*influences) == pytest.approx(expected, rel=1e-9)


def test_doubled_slides_of_a_patient_are_no_more_certain() -> None:
    rng = np.random.default_rng(1)
    positive = np.arange(40) < 20
    scores = [rng.normal(size=40) + effect * positive for effect in (1.5, 0.5)]
    once = [auc_influence(positive, each, np.arange(40)) for each in scores]
    twice = [
        auc_influence(np.tile(positive, 2), np.tile(each, 2), np.tile(np.arange(40), 2))
        for each in scores
    ]
    as_others = [
        auc_influence(np.tile(positive, 2), np.tile(each, 2), np.arange(80)) for each in scores
    ]
    assert delong(*twice) == pytest.approx(delong(*once), rel=0.1)
    assert delong(*as_others) < delong(*once) * 0.9


def test_equal_models_do_not_differ() -> None:
    rng = np.random.default_rng(2)
    positive = np.arange(30) < 12
    scores = rng.normal(size=30)
    same = auc_influence(positive, scores, np.arange(30))
    assert delong(same, auc_influence(positive, scores * 3 + 1, np.arange(30))) == 1


def test_two_perfect_rankings_differ_from_one_that_is_reversed_without_variance() -> None:
    positive = np.arange(20) < 10
    perfect, reversed_ = (
        auc_influence(positive, sign * positive.astype(float), np.arange(20)) for sign in (1, -1)
    )
    assert (perfect.area, reversed_.area) == (1, 0)
    assert delong(perfect, reversed_) is None
    alone = auc_influence(np.arange(20) < 1, np.arange(20.0), np.arange(20))
    assert delong(alone, alone) is None


def test_mcnemar_is_the_binomial_test_of_the_patients_that_differ() -> None:
    first, second = np.array([True] * 9 + [False] * 3), np.array([True] * 2 + [False] * 9 + [True])
    assert mcnemar(first, second) == pytest.approx(stats.binomtest(7, 8).pvalue)
    assert mcnemar(first, first) == 1


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, None]) == pytest.approx([0.03, 0.06, 0.06, None])
    assert holm([0.9, 0.6]) == pytest.approx([1, 1])
    assert holm([]) == []


def test_models_that_are_alike_seldom_differ_and_intervals_cover() -> None:
    covered, rejected, repeats = np.zeros(2), np.zeros(2), 60
    for repeat in range(repeats):
        tables = (predictions_of(60, 1000 * side + repeat, 1.0, repeat, 2) for side in (1, 2))
        figures = compare_models(*tables, names(2), SETTINGS)
        for number, figure in enumerate(figures[:2]):
            assert figure.difference.low is not None
            covered[number] += figure.difference.low <= 0 <= figure.difference.high
            assert figure.p is not None
            rejected[number] += figure.p < 0.05
    # 0.95 and 0.05, less or more by two standard errors; McNemar's exact test rejects less.
    assert (covered / repeats > 0.88).all()
    assert (rejected / repeats < 0.12).all()


def test_intervals_cover_the_difference_of_a_better_model() -> None:
    """The true difference is that of a hundred thousand patients."""
    every = [predictions_of(100_000, side, noise, 99, 2) for side, noise in ((1, 0.3), (2, 1.5))]
    true = [
        np.subtract(*(share(table) for table in every))
        for share in (
            lambda table: (table["call_mean"] == table["label"]).mean(),
            lambda table: roc_auc_score(table["label"] == "c0", table["p_c0"]),
        )
    ]
    assert all(difference > 0.05 for difference in true)
    covered, repeats = np.zeros(2), 60
    for repeat in range(repeats):
        tables = (
            predictions_of(40, 1000 * side + repeat, noise, repeat, 2)
            for side, noise in ((1, 0.3), (2, 1.5))
        )
        for number, figure in enumerate(compare_models(*tables, names(2), SETTINGS)):
            low, high = figure.difference.low, figure.difference.high
            assert low is not None and high is not None
            covered[number] += low <= true[number] <= high
    assert (covered / repeats > 0.9).all(), covered


def test_a_worse_model_is_found_by_all_figures() -> None:
    figures = compare_models(
        predictions_of(180, 1, 0.2), predictions_of(180, 2, 3.0), names(), SETTINGS
    )
    assert [figure.name for figure in figures] == [
        *("accuracy", "ROC AUC, mean of the classes"),
        *("ROC AUC of c0", "ROC AUC of c1", "ROC AUC of c2"),
    ]
    for figure in figures:
        assert figure.first > figure.second
        assert figure.difference.low is not None and figure.difference.low > 0
        assert figure.p is not None and figure.p < 0.05


def test_figures_are_those_of_the_evaluation() -> None:
    first, second = predictions_of(60, 1, 0.5), predictions_of(60, 2, 1.0)
    figures = {f.name: f for f in compare_models(first, second, names(), SETTINGS)}
    level = evaluate(first, names(), SETTINGS, {}).patient
    assert figures["accuracy"].first == pytest.approx(level.accuracy.mean_call.value, abs=1e-6)
    mean = figures["ROC AUC, mean of the classes"].first
    assert mean == pytest.approx(level.roc_auc.macro.value, abs=1e-6)
    for name, interval in level.roc_auc.per_class.items():
        assert figures[f"ROC AUC of {name}"].first == pytest.approx(interval.value, abs=1e-6)


def test_two_classes_have_one_area_and_order_does_not_matter() -> None:
    first, second = predictions_of(40, 1, 0.5, classes=2), predictions_of(40, 2, 1.0, classes=2)
    figures = compare_models(first, second, names(2), SETTINGS)
    assert [figure.name for figure in figures] == ["accuracy", "ROC AUC of c0"]
    turned = compare_models(first[::-1], second.sample(frac=1, random_state=1), names(2), SETTINGS)
    assert turned == figures


def test_few_patients_have_no_interval_and_no_missing_class_an_area() -> None:
    few = [predictions_of(9, seed, 1.0) for seed in (1, 2)]
    for figure in compare_models(*few, names(), SETTINGS)[1:]:
        assert figure.difference.low is None and figure.difference.no_interval
    without = [table[table["label"] != "c2"] for table in few]
    assert len(compare_models(*without, names(), SETTINGS)) == 1


# --- Runs


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Two runs, of which the second was tested on fewer slides."""
    tables = {"a_1": predictions_of(60, 1, 0.3), "b&2": predictions_of(60, 2, 2.0)[:-6]}
    return [write_run(tmp_path / name, table) for name, table in tables.items()]


def test_runs_are_compared_on_their_common_slides(runs: list[Path], tmp_path: Path) -> None:
    compared = compare_runs(runs)
    assert (compared.slides, compared.patients) == ({"b&2": 54}, {"b&2": 54})
    assert compared.left_out == {"b&2": [f"S{number:03}" for number in range(54, 60)]}
    assert compared.inputs["a_1/evaluation/slides.tsv"] == sha256_of(
        runs[0] / "evaluation/slides.tsv"
    )
    expected = compare_models(
        predictions_of(60, 2, 2.0)[:54], predictions_of(60, 1, 0.3)[:54], names(), SETTINGS
    )
    for row, figure in zip(compared.figures, expected, strict=True):
        assert (row.run, row.figure, row.p) == ("b&2", figure.name, pytest.approx(figure.p))
        assert row.difference == pytest.approx(figure.first - figure.second, abs=1e-6)
        assert row.difference < 0
    assert [row.corrected for row in compared.figures] == pytest.approx(
        holm([row.p for row in compared.figures])
    )
    write_comparison(compared, tmp_path / "out")
    rows = read_table(tmp_path / "out/comparison.tsv")
    assert [row["figure"] for row in rows] == [row.figure for row in compared.figures]
    methods = (tmp_path / "out/methods.txt").read_text()
    assert "b&2 was compared with a_1 on the 54 slides of 54 patients" in methods
    assert "The 5 two-sided p-values" in methods
    few = [
        write_run(tmp_path / name, predictions_of(3, seed, 1.0))
        for seed, name in ((1, "x"), (2, "y"))
    ]
    assert "it is the only one, so it was not corrected" in methods_of(compare_runs(few))


def test_the_table_in_latex_has_no_bare_special_characters(runs: list[Path]) -> None:
    text = latex_of(compare_runs(runs))
    assert text.startswith("\\begin{tabular}{llrrrr}")
    assert "b\\&2" in text and "a\\_1" in text and "95 \\%" in text
    lines = [line for line in text.splitlines() if line.endswith("\\\\")]
    assert len(lines) == 1 + 5
    for line in lines:
        assert line.replace("\\&", "").count("&") == 5


def test_three_runs_are_corrected_together(runs: list[Path], tmp_path: Path) -> None:
    third = write_run(tmp_path / "third", predictions_of(60, 3, 2.5))
    both, alone = compare_runs([*runs, third]), compare_runs(runs)
    assert len(both.figures) == 2 * len(alone.figures)
    for row, same in zip(both.figures, alone.figures, strict=False):
        assert row.p == same.p
        assert row.corrected is not None and same.corrected is not None
        assert row.corrected >= same.corrected


def edit(folder: Path, column: str, value: str) -> None:
    path = folder / "evaluation/slides.tsv"
    rows = read_table(path)
    rows[7][column] = value
    write_table(path, list(rows[0]), [list(row.values()) for row in rows])


def renew(folder: Path) -> None:
    """Make metrics.json agree with an edited table."""
    text = (folder / "evaluation/metrics.json").read_text()
    old = text.split('"evaluation/slides.tsv": "')[1][:64]
    new = sha256_of(folder / "evaluation/slides.tsv")
    (folder / "evaluation/metrics.json").write_text(text.replace(old, new))


@pytest.mark.parametrize(("column", "value"), [("patient", "P099"), ("label", "c0")])
def test_what_does_not_belong_together_is_refused(
    runs: list[Path], column: str, value: str
) -> None:
    edit(runs[1], column, value)
    with pytest.raises(UserError, match=r"was computed from another version of evaluation/slides"):
        compare_runs(runs)
    renew(runs[1])
    with pytest.raises(UserError, match=f"slide S007 has the {column} '.*' in a_1 and '{value}'"):
        compare_runs(runs)


def test_other_runs_are_refused(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no evaluation/metrics\.json"):
        compare_runs([runs[0], tmp_path])
    other = write_run(tmp_path / "two", predictions_of(40, 1, 1.0, classes=2), 2)
    with pytest.raises(UserError, match="two has the classes c0, c1, a_1 c0, c1, c2"):
        compare_runs([runs[0], other])
    table = predictions_of(30, 1, 1.0)
    table["slide"] = "X" + table["slide"]
    with pytest.raises(UserError, match="were tested on no common slide"):
        compare_runs([runs[0], write_run(tmp_path / "x", table)])
    with pytest.raises(UserError, match="runs of the same name"):
        compare_runs([runs[0], runs[0]])
