"""The figures of a classification."""

import matplotlib
import numpy as np

from gigatile.evaluation.metrics_file import Curve
from gigatile.report.figures import BLUE, GREY, canvas, svg


def roc(curve: Curve) -> bytes:
    """Plot a ROC curve over its band; return SVG."""
    with matplotlib.rc_context():
        figure, axes = canvas(3.1, 3.1)
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
        return svg(figure)
