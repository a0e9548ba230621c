"""Figures as SVG; the same values give the same bytes."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# Okabe & Ito's colours, safe for colour-blind readers; lines differ in their dashes too.
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#6b7280"

# Metrics with values from 0 to 1.
FRACTIONS = (
    *("accuracy", "dice", "mask_ap", "mask_ap50", "mask_ap75"),
    *("box_ap", "box_ap50", "box_ap75"),
)

STYLE: Any = {
    "svg.hashsalt": "gigatile",
    # Text as outlines, so a page looks the same without the font.
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
    title: str | None = None,
) -> bytes:
    """Plot a metric over the epochs, train solid and valid dashed; return SVG.

    Args:
        epochs, train, valid: of one length; NaN: not measured.
        name: of the metric.
        chosen: the epoch of the model; a dotted line marks it.
        title: what the page calls the metric; None: its name.
    """
    with matplotlib.rc_context():
        figure, axes = canvas(4.6, 3.1)
        marker: dict[str, Any] = {"marker": "o", "markersize": 3.5} if len(epochs) <= 30 else {}
        for values, style in (
            (train, {"color": BLUE, "label": "train"}),
            (valid, {"color": ORANGE, "label": "valid", "linestyle": (0, (4, 2))}),
        ):
            measured = np.isfinite(values)
            if not measured.any():
                continue
            axes.plot(np.array(epochs)[measured], np.array(values)[measured], **style, **marker)
        if chosen is not None:
            axes.axvline(chosen, color=GREY, linewidth=0.9, linestyle=(0, (1, 2)))
        axes.set_xlabel("epoch")
        axes.set_ylabel(title or name)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        if name in FRACTIONS:
            axes.set_ylim(0, 1.02)
        else:
            axes.set_ylim(bottom=0)
        axes.grid(axis="y", color="#e5e7eb", linewidth=0.8)
        axes.legend(loc="best", handlelength=2.6)
        return svg(figure)


def describe_curve(
    history: Mapping[str, Sequence[float]], name: str, title: str | None = None
) -> str:
    """Return a training curve in words, as text for screen readers; see `training_curve`."""
    spans = []
    for split, key in (("train", name), ("valid", f"valid_{name}")):
        measured = [value for value in history[key] if np.isfinite(value)]
        span = f"from {measured[0]:.3f} to {measured[-1]:.3f}" if measured else "not measured"
        spans.append(f"{split} {span}")
    return f"{title or name} over {len(history['epoch'])} epochs: {', '.join(spans)}"


def canvas(width: float, height: float) -> tuple[Figure, Any]:
    """Return an empty figure of this size in inches, and its axes."""
    # The report must not depend on the user's matplotlibrc.
    matplotlib.rcdefaults()
    matplotlib.rcParams.update(STYLE)
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def svg(figure: Figure) -> bytes:
    """Return a figure as SVG without metadata."""
    buffer = io.BytesIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing, facecolor="white")
    text = buffer.getvalue()
    # Without the prologue, which refers to a document type on the network.
    return text[text.index(b"<svg") :]
