"""The figures of a segmentation."""

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np

from gigatile.evaluation.metrics_file import Interval
from gigatile.report.figures import BLUE, GREEN, GREY, ORANGE, canvas, svg


def spread(
    values: Mapping[str, Sequence[float]], means: Mapping[str, Interval], name: str
) -> bytes:
    """Plot a metric of all cases, a row for each region, with mean and interval; return SVG.

    Args:
        values: by region, 0-1.
        means: by region, with their intervals.
        name: of the metric.
    """
    with matplotlib.rc_context():
        figure, axes = canvas(4.6, max(3.1, 0.9 + 0.55 * len(values)))
        for row, (region, of_cases) in enumerate(values.items()):
            # Points with equal values are spread vertically, by their order.
            order = np.argsort(np.argsort(of_cases, kind="stable"))
            lift = (order % 5 - 2) * 0.07
            axes.plot(
                of_cases, row + lift, "o", color=BLUE, markersize=4, alpha=0.6, markeredgewidth=0
            )
            mean = means[region]
            if mean.low is not None and mean.high is not None:
                axes.plot([mean.low, mean.high], [row - 0.3] * 2, color=ORANGE, linewidth=2.2)
            if mean.value is not None:
                axes.plot([mean.value] * 2, [row - 0.42, row - 0.18], color=ORANGE, linewidth=2.2)
        axes.set_yticks(range(len(values)), [region.replace("_", " ") for region in values])
        axes.set_ylim(len(values) - 0.5, -0.6)
        axes.set_xlim(-0.02, 1.02)
        axes.set_xlabel(name)
        axes.grid(axis="x", color="#e5e7eb", linewidth=0.8)
        axes.tick_params(axis="y", length=0)
        return svg(figure)


def volumes(pairs: Mapping[str, Sequence[tuple[float, float]]]) -> bytes:
    """Plot predicted over reference volumes, with a marker for each region; return SVG.

    Args:
        pairs: by region, the (reference, prediction) of each case in millilitres.
    """
    styles = [
        ("o", BLUE),
        ("s", ORANGE),
        ("^", GREEN),
        ("D", GREY),
        ("v", "#cc79a7"),
        ("P", "#000"),
    ]
    with matplotlib.rc_context():
        figure, axes = canvas(4.6, 3.1)
        most = max((max(pair) for of_cases in pairs.values() for pair in of_cases), default=0) or 1
        axes.plot([0, most], [0, most], color=GREY, linewidth=0.9, linestyle=(0, (2, 3)))
        for number, (region, of_cases) in enumerate(pairs.items()):
            marker, colour = styles[number % len(styles)]
            reference, predicted = zip(*of_cases, strict=True)
            axes.plot(
                reference,
                predicted,
                marker,
                color=colour,
                markersize=5,
                alpha=0.75,
                markeredgewidth=0,
                label=region.replace("_", " "),
            )
        axes.set_xlim(-0.03 * most, 1.05 * most)
        axes.set_ylim(-0.03 * most, 1.05 * most)
        axes.set_aspect("equal")
        axes.set_xlabel("reference, ml")
        axes.set_ylabel("prediction, ml")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), handlelength=1, fontsize=8)
        return svg(figure)
