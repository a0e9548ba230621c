"""The figures of a classification, as SVG in the page: the style sheet gives them its colours."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from gigatile.evaluation.calibration_file import Bin, NetBenefit
from gigatile.evaluation.metrics_file import Curve

# Side of a ROC plot in the units of its SVG.
SIDE = 200


@dataclass(frozen=True)
class RocPlot:
    """The `points` of the polyline of a curve, and of the polygon of its band (empty: none)."""

    curve: str
    band: str


def roc(curve: Curve) -> RocPlot:
    """Return the shapes of a ROC curve: x to the right, y down, both from 0 to `SIDE`."""
    band = ""
    if curve.band is not None:
        upper = zip(curve.band.fpr, curve.band.high, strict=True)
        lower = zip(curve.band.fpr, curve.band.low, strict=True)
        band = _points([*upper, *reversed([*lower])])
    return RocPlot(_points([*zip(curve.fpr, curve.tpr, strict=True)]), band)


@dataclass(frozen=True)
class Dot:
    """A bin of a reliability curve, in the units of the SVG.

    Attributes:
        x, y: mean score to the right, observed share upwards.
        low, high: the ends of the interval of the share; None: there is none.
        bin: its numbers.
    """

    x: str
    y: str
    low: str | None
    high: str | None
    bin: Bin


def reliability(curve: Sequence[Bin]) -> list[Dot]:
    """Return the shapes of a reliability curve: a dot for each bin that has slides."""
    dots = []
    for item in curve:
        if item.score is None or item.observed.value is None:
            continue
        low, high = item.observed.low, item.observed.high
        dots.append(
            Dot(
                f"{SIDE * item.score:.4g}",
                f"{SIDE * (1 - item.observed.value):.4g}",
                None if low is None else f"{SIDE * (1 - low):.4g}",
                None if high is None else f"{SIDE * (1 - high):.4g}",
                item,
            )
        )
    return dots


@dataclass(frozen=True)
class DecisionPlot:
    """A decision curve, in the units of the SVG: the threshold to the right, the benefit upwards.

    Attributes:
        model, all_positive: `points` of the polylines.
        band: `points` of the polygon of the intervals; empty: there are none.
        zero: y of the benefit 0.
        top, bottom: benefits at the upper and lower edge.
        points: the numbers.
    """

    model: str
    all_positive: str
    band: str
    zero: str
    top: float
    bottom: float
    points: Sequence[NetBenefit]


def decision(curve: Sequence[NetBenefit]) -> DecisionPlot | None:
    """Return the shapes of a decision curve; None without slides.

    The lower edge is just below 0: how bad it is to call all slides positive is not of interest.
    """
    values = [(item, item.model.value) for item in curve if item.model.value is not None]
    if not values:
        return None
    highs = [item.model.high for item, _ in values if item.model.high is not None]
    top = max(0.1, *highs, *(value for _, value in values))
    bottom = -top / 5

    def place(threshold: float, benefit: float) -> str:
        height = (min(top, max(bottom, benefit)) - bottom) / (top - bottom)
        return f"{SIDE * threshold:.4g},{SIDE * (1 - height):.4g}"

    band = ""
    if len(highs) == len(values):
        upper = [place(item.threshold, item.model.high or 0) for item, _ in values]
        lower = [place(item.threshold, item.model.low or 0) for item, _ in values]
        band = " ".join([*upper, *reversed(lower)])
    return DecisionPlot(
        model=" ".join(place(item.threshold, value) for item, value in values),
        all_positive=" ".join(place(item.threshold, item.all_positive) for item, _ in values),
        band=band,
        zero=place(0, 0).partition(",")[2],
        top=top,
        bottom=bottom,
        points=[item for item, _ in values],
    )


def _points(rates: list[tuple[float, float]]) -> str:
    """Return pairs of rates as coordinates, without points that equal the one before."""
    points = [f"{SIDE * fpr:.4g},{SIDE * (1 - tpr):.4g}" for fpr, tpr in rates]
    return " ".join(point for point, _ in groupby(points))
