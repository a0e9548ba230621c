"""The report's figures: small SVG pictures, one idea each, the same bytes for the same figures."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gigatile.report.metrics import Curve, Interval

# Okabe & Ito's colours, told apart with any colour vision; every line differs in its dashes too.
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#6b7280"

STYLE: Any = {
    "svg.hashsalt": "gigatile",
    # Letters as outlines: a page must look the same where the font is missing.
    "svg.fonttype": "path",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.8,
    "xtick.color": "#374151",
    "ytick.color": "#374151",
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "path.simplify": True,
}


def training_curve(
    epochs: Sequence[float],
    train: Sequence[float],
    valid: Sequence[float],
    name: str,
    chosen: int | None = None,
) -> bytes:
    """Draw one figure of training over the epochs, train solid and valid dashed; return SVG.

    Args:
        epochs, train, valid: of one length; NaN where nothing was measured.
        name: of the figure.
        chosen: the epoch whose model was taken; a dotted line marks it.
    """
    with matplotlib.rc_context():
        figure, axes = _canvas(4.6, 3.1)
        marker: dict[str, Any] = {"marker": "o", "markersize": 3.5} if len(epochs) <= 30 else {}
        for values, look in (
            (train, {"color": BLUE, "label": "train"}),
            (valid, {"color": ORANGE, "label": "valid", "linestyle": (0, (4, 2))}),
        ):
            measured = np.isfinite(values)
            axes.plot(np.array(epochs)[measured], np.array(values)[measured], **look, **marker)
        if chosen is not None:
            axes.axvline(chosen, color=GREY, linewidth=0.9, linestyle=(0, (1, 2)))
        axes.set_xlabel("epoch")
        axes.set_ylabel(name)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        if name in ("accuracy", "dice"):
            axes.set_ylim(0, 1.02)
        else:
            axes.set_ylim(bottom=0)
        axes.grid(axis="y", color="#e5e7eb", linewidth=0.8)
        axes.legend(loc="best", handlelength=2.6)
        return _svg(figure)


def roc(curve: Curve) -> bytes:
    """Draw a ROC curve over its band; return SVG."""
    with matplotlib.rc_context():
        figure, axes = _canvas(3.1, 3.1)
        axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, linestyle=(0, (2, 3)))
        if curve.band is not None:
            band = curve.band
            axes.fill_between(band.fpr, band.low, band.high, color=BLUE, alpha=0.18, linewidth=0)
        axes.plot(curve.fpr, curve.tpr, color=BLUE)
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
        axes.set_aspect("equal")
        axes.set_xticks(np.linspace(0, 1, 5), ["0", ".25", ".5", ".75", "1"])
        axes.set_yticks(np.linspace(0, 1, 5), ["0", ".25", ".5", ".75", "1"])
        axes.set_xlabel("false positive rate")
        axes.set_ylabel("true positive rate")
        return _svg(figure)


def spread(
    values: Mapping[str, Sequence[float]], means: Mapping[str, Interval], name: str
) -> bytes:
    """Draw a share of every case, a row of points for each region, over its mean; return SVG.

    Args:
        values: of each region, 0-1.
        means: of each region, with their intervals.
        name: of the figure.
    """
    with matplotlib.rc_context():
        figure, axes = _canvas(4.6, max(3.1, 0.9 + 0.55 * len(values)))
        for row, (region, found) in enumerate(values.items()):
            # Equal values lie above each other; which is where is no matter of chance.
            order = np.argsort(np.argsort(found, kind="stable"))
            lift = (order % 5 - 2) * 0.07
            axes.plot(
                found, row + lift, "o", color=BLUE, markersize=4, alpha=0.6, markeredgewidth=0
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
        return _svg(figure)


def volumes(pairs: Mapping[str, Sequence[tuple[float, float]]]) -> bytes:
    """Draw volumes by the prediction over those by the truth, a mark for each region; return SVG.

    Args:
        pairs: of each region, the (truth, prediction) of every case in millilitres.
    """
    looks = [("o", BLUE), ("s", ORANGE), ("^", GREEN), ("D", GREY), ("v", "#cc79a7"), ("P", "#000")]
    with matplotlib.rc_context():
        figure, axes = _canvas(4.6, 3.1)
        most = max((max(pair) for found in pairs.values() for pair in found), default=0) or 1
        axes.plot([0, most], [0, most], color=GREY, linewidth=0.9, linestyle=(0, (2, 3)))
        for number, (region, found) in enumerate(pairs.items()):
            marker, colour = looks[number % len(looks)]
            truth, predicted = zip(*found, strict=True)
            axes.plot(
                truth,
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
        axes.set_xlabel("truth, ml")
        axes.set_ylabel("prediction, ml")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), handlelength=1, fontsize=8)
        return _svg(figure)


def describe_curve(history: Mapping[str, Sequence[float]], name: str) -> str:
    """Say in words what a training curve shows, for those who do not see it."""
    told = []
    for split, key in (("train", name), ("valid", f"valid_{name}")):
        measured = [value for value in history[key] if np.isfinite(value)]
        span = f"from {measured[0]:.3f} to {measured[-1]:.3f}" if measured else "not measured"
        told.append(f"{split} {span}")
    return f"{name} over {len(history['epoch'])} epochs: {', '.join(told)}"


def _canvas(width: float, height: float) -> tuple[Figure, Any]:
    # A user's own matplotlibrc must not change the report.
    matplotlib.rcdefaults()
    matplotlib.rcParams.update(STYLE)
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _svg(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing, facecolor="white")
    text = buffer.getvalue()
    # The prologue only points to a document type on the network, which no browser needs.
    return text[text.index(b"<svg") :]
