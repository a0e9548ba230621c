"""Thresholds are the best ones on the validation slides, and nothing else has a part in them."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigatile.evaluation.operating_points import choose_points, figures_at, threshold_of
from gigatile.settings.evaluate import EvaluationSettings

SETTINGS = EvaluationSettings(resamples=1000)
SCORES = st.lists(
    st.tuples(st.integers(0, 12).map(lambda n: n / 12), st.booleans()), min_size=2, max_size=40
).filter(lambda pairs: len({positive for _, positive in pairs}) == 2)
RATES = st.sampled_from([0.01, 0.5, 2 / 3, 0.8, 0.9, 0.95, 1.0])


def rates_at(threshold, scores, positive):
    """Return sensitivity and specificity in plain Python."""
    right = [score >= threshold for score, label in zip(scores, positive, strict=True) if label]
    wrong = [score < threshold for score, label in zip(scores, positive, strict=True) if not label]
    return sum(right) / len(right), sum(wrong) / len(wrong)


@given(SCORES, RATES)
def test_no_other_threshold_is_better(pairs, rate):
    scores = np.array([score for score, _ in pairs])
    positive = np.array([label for _, label in pairs])
    every = {float(t): rates_at(t, scores, positive) for t in scores}
    for criterion, wanted, other in (("sensitivity", 0, 1), ("specificity", 1, 0)):
        threshold = threshold_of(scores, positive, criterion, rate)
        enough = {t: r for t, r in every.items() if r[wanted] >= rate - 1e-12}
        if threshold is None:
            assert criterion == "specificity" and not enough
            continue
        assert threshold in enough
        assert enough[threshold][other] == max(r[other] for r in enough.values())


def slides(rows):
    table = pd.DataFrame(rows, columns=["patient", "label", "p_a"])
    return table.assign(p_b=1 - table["p_a"])


VALIDATION = slides(
    [(f"p{n}", "a", 0.3 + n / 50) for n in range(20)]
    + [(f"q{n}", "b", 0.1 + n / 50) for n in range(20)]
)
WANTED = {"sensitivity": [0.95, 1.0], "specificity": [0.9]}


def test_points_of_a_cohort():
    points = choose_points(VALIDATION, ["a", "b"], WANTED, {"slides.tsv": "0"})
    assert points.split == "valid" and (points.slides, points.patients) == (40, 40)
    assert points.labels == {"a": 20, "b": 20}
    first = points.points[0]
    assert (first.positive, first.criterion, first.wanted) == ("a", "sensitivity", 0.95)
    # 19 of 20 are 0.95: the second lowest score of a.
    assert first.threshold == pytest.approx(0.32) and first.sensitivity == 0.95
    assert len(points.points) == 6
    (figures, *_) = figures_at(points.points, VALIDATION, SETTINGS)
    assert figures.sensitivity.value == first.sensitivity
    assert figures.specificity.value == first.specificity
    assert figures.called == int((VALIDATION["p_a"] >= first.threshold).sum())
    called = VALIDATION["p_a"] >= first.threshold
    assert figures.ppv.value == pytest.approx((VALIDATION["label"] == "a")[called].mean(), abs=1e-6)
    assert figures.npv.value == pytest.approx(
        (VALIDATION["label"] == "b")[~called].mean(), abs=1e-6
    )
    for interval in (figures.sensitivity, figures.specificity, figures.ppv, figures.npv):
        assert interval.low < interval.value <= interval.high


def test_class_that_is_missing_or_alone_has_no_threshold():
    alone = slides([(f"p{n}", "a", n / 10) for n in range(8)])
    points = choose_points(alone, ["a", "b"], {"sensitivity": [0.9], "specificity": []}, {})
    reasons = [point.reason for point in points.points]
    assert reasons == ["all validation slides are of class a", "no validation slide of class b"]
    assert all(
        figures.sensitivity.value is None for figures in figures_at(points.points, alone, SETTINGS)
    )
    tied = slides([("p", "a", 0.5), ("q", "b", 0.5)])
    points = choose_points(tied, ["a", "b"], {"sensitivity": [], "specificity": [1.0]}, {})
    assert points.points[0].reason == "no score of a validation slide gives a specificity of 1"


@pytest.fixture
def files(tmp_path, command):
    """Write slides.tsv of both splits, and return a function that runs the command."""
    described = tmp_path / "settings.json"
    described.write_text(json.dumps({"classes": ["a", "b"]}))

    def write(name, table):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        table = table.assign(
            slide=[f"s{n}" for n in range(len(table))],
            call_mean=np.where(table["p_a"] >= 0.5, "a", "b"),
        )
        table.to_csv(folder / "slides.tsv", sep="\t", index=False, float_format="%.6f")

    def choose(**options):
        out = tmp_path / "points.json"
        done = command(
            "choose_operating_points.py", "--slides", tmp_path / "validation/slides.tsv",
            "--described", described, "--sensitivity", "0.95", "--out", out, **options,
        )  # fmt: skip
        return done, out

    return write, choose


def test_labels_of_the_test_split_cannot_change_a_threshold(files):
    write, choose = files
    write("validation", VALIDATION)
    write("evaluation", VALIDATION)
    before = choose()[1].read_bytes()
    swapped = VALIDATION.assign(label=VALIDATION["label"].map({"a": "b", "b": "a"}))
    write("evaluation", swapped)
    assert choose()[1].read_bytes() == before
    write("validation", swapped)
    assert choose()[1].read_bytes() != before


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("p_a", np.nan, "row 2: p_a is ''; must be a number from 0 to 1"),
        ("p_b", 1.5, "row 2: p_b is '1.500000'; must be a number from 0 to 1"),
        ("label", "c", "row 2: label is 'c'; must be one of a, b"),
    ],
)
def test_damaged_scores_are_one_message(files, column, value, message):
    write, choose = files
    table = VALIDATION.copy()
    table.loc[0, column] = value
    write("validation", table)
    done, out = choose(check=False)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    assert not out.exists()
