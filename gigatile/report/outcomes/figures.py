"""The figures of predicted outcomes, as SVG in the page: the style sheet gives them colours."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gigatile.evaluation.outcomes import RiskGroup, SurvivalFigures
from gigatile.report.outcomes.inputs import PredictedSlide

# Size of a plot in the units of its SVG.
WIDTH, HEIGHT = 300, 200


@dataclass(frozen=True)
class Steps:
    """A Kaplan-Meier curve.

    Attributes:
        line: `points` of the polyline.
        band: `points` of the polygon of the intervals.
        ticks: (x, y) of patients whose observation ended.
    """

    line: str
    band: str
    ticks: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class SurvivalPlot:
    """The curves of two groups over time.

    Attributes:
        marks: x and text of the axis of time.
    """

    low_risk: Steps
    high_risk: Steps
    marks: Sequence[tuple[str, str]]


def survival(figures: SurvivalFigures) -> SurvivalPlot:
    """Return the shapes of the curves: time to the right, survival upwards."""
    groups = (figures.low_risk, figures.high_risk)
    last = max([time for group in groups for time in (*group.times, *group.censored)], default=1.0)
    step = nice_step(last / 4)
    marks = [number * step for number in range(int(last / step + 1e-9) + 1)]
    return SurvivalPlot(
        _steps(figures.low_risk, last),
        _steps(figures.high_risk, last),
        [(f"{WIDTH * mark / last:.4g}", f"{mark:g}") for mark in marks],
    )


def _steps(group: RiskGroup, last: float) -> Steps:
    end = max([*group.times, *group.censored], default=0.0)

    def corners(values: Sequence[float]) -> list[tuple[float, float]]:
        points, level = [(0.0, 1.0)], 1.0
        for time, value in zip(group.times, values, strict=True):
            points += [(time, level), (time, value)]
            level = value
        return [*points, (end, level)]

    def text(points: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{WIDTH * x / last:.4g},{HEIGHT * (1 - y):.4g}" for x, y in points)

    ticks = []
    for time in group.censored:
        passed = [v for t, v in zip(group.times, group.survival, strict=True) if t <= time]
        level = passed[-1] if passed else 1.0
        ticks.append((f"{WIDTH * time / last:.4g}", f"{HEIGHT * (1 - level):.4g}"))
    band = [*corners(group.high), *reversed(corners(group.low))] if group.times else []
    return Steps(text(corners(group.survival)), text(band), ticks)


@dataclass(frozen=True)
class Scatter:
    """Predicted over true numbers, on the same scale.

    Attributes:
        dots: x, y and slide.
        marks: position from the origin, and text, of both axes.
    """

    dots: Sequence[tuple[str, str, PredictedSlide]]
    marks: Sequence[tuple[str, str]]


def scatter(slides: Sequence[PredictedSlide]) -> Scatter:
    """Return the shapes of a scatter plot: truth to the right, prediction upwards."""
    truths = {slide.id: slide.outcome.value for slide in slides if slide.outcome}
    numbers = [*truths.values(), *(slide.predicted for slide in slides)]
    low, high = min(numbers), max(numbers)
    span = (high - low) or 1.0
    step = nice_step(span / 4)
    first = math.ceil(low / step - 1e-9)
    marks = [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]
    return Scatter(
        [
            (
                f"{HEIGHT * (truths[slide.id] - low) / span:.4g}",
                f"{HEIGHT * (1 - (slide.predicted - low) / span):.4g}",
                slide,
            )
            for slide in slides
        ],
        [(f"{HEIGHT * (mark - low) / span:.4g}", f"{mark:g}") for mark in marks],
    )


def nice_step(step: float) -> float:
    """Return the largest of 1, 2 and 5 times a power of ten that is not above a step."""
    power = 10.0 ** math.floor(math.log10(step))
    return max(factor * power for factor in (1, 2, 5) if factor * power <= step * (1 + 1e-9))
