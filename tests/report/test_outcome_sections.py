"""The report of predicted numbers and risks shows all figures, also undefined ones."""

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from gigatile.cohort.outcomes import Outcome, parse_outcome
from gigatile.evaluation.outcomes import OutcomeMetrics, evaluate_outcomes, median_risk
from gigatile.report.outcomes.inputs import PredictedSlide
from gigatile.report.outcomes.sections import RESULT, TEST_SLIDES
from gigatile.report.pages import render
from gigatile.settings.evaluate import EvaluationSettings

SETTINGS = EvaluationSettings(resamples=1000)


def evaluated(outcomes: list[Outcome], predicted: list[float]) -> SimpleNamespace:
    """Return a run with these test slides, one of each patient."""
    table = pd.DataFrame(
        {
            "slide": [f"S{k}" for k in range(len(outcomes))],
            "patient": [f"P{k}" for k in range(len(outcomes))],
            "label": list(map(str, outcomes)),
            "predicted": predicted,
        }
    )
    scored = [
        PredictedSlide(
            row.slide, row.patient, row.label, row.predicted, 9, parse_outcome(row.label)
        )
        for row in table.itertuples()
    ]
    return SimpleNamespace(
        metrics=evaluate_outcomes(table, median_risk(table), SETTINGS, {}), scored=scored
    )


def section(run: SimpleNamespace, which=RESULT) -> str:
    content = which.content(run)
    assert content is not None
    return render(which.template, **content.values)


def numbers(count: int) -> SimpleNamespace:
    random = np.random.default_rng(count)
    values = random.normal(5, 2, count).round(2)
    return evaluated([Outcome(float(v)) for v in values], list(values + random.normal(size=count)))


def cells(page: str) -> dict[str, list[str]]:
    """Return the cells of each row of the first table, without tags, by the row's heading."""
    rows = re.findall(r"<tr><th scope=\"row\"[^>]*>(.*?)</th>(.*?)</tr>", page)
    return {
        re.sub("<[^>]+>", "", name): re.findall(r"<td[^>]*>(.*?)</td>", row) for name, row in rows
    }


def test_numbers_have_figures_with_intervals_and_a_dot_for_each_slide() -> None:
    run = numbers(20)
    page = section(run)
    shown, metrics = cells(page), run.metrics
    assert isinstance(metrics, OutcomeMetrics) and metrics.numbers is not None
    for name, interval in (
        ("Mean absolute error", metrics.numbers.mean_absolute_error),
        ("Root mean squared error", metrics.numbers.root_mean_squared_error),
        ("R²", metrics.numbers.r_squared),
        ("Correlation (Pearson)", metrics.numbers.correlation),
        ("Concordance", metrics.concordance),
    ):
        value, ends = shown[name]
        assert value == f"{interval.value:.3f}"
        assert f"{interval.low:.3f}" in ends and f"{interval.high:.3f}" in ends
    assert page.count('<circle class="dot"') == 20
    table = section(run, TEST_SLIDES)
    assert table.count("<tr><th") == 21 and "Predicted" in table


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (lambda: numbers(1), "fewer than 5 patients"),
        (lambda: evaluated([Outcome(3.0)] * 8, [1.0, 2.0] * 4), "the figure is not defined"),
        (lambda: evaluated([Outcome(3.0, False)] * 6, [1.0] * 6), "no pair can be compared"),
        (lambda: evaluated([Outcome(3.0, True)] * 6, [1.0] * 6), "not defined"),
    ],
)
def test_figures_that_are_not_defined_are_said(run, said) -> None:
    page = section(run())
    assert said in re.sub(r"\s+", " ", page) and "nan" not in page.lower()
