"""How the training went: a figure of the loss, and one of what was measured beside it."""

from collections.abc import Mapping, Sequence

import numpy as np

from gigatile.report import figures
from gigatile.report.heatmap import data_uri


def curves(history: Mapping[str, Sequence[float]], chosen: int) -> list[dict[str, str]]:
    """Draw each figure of a training; no picture of one that no epoch measured.

    Args:
        history: a list per column of history.tsv.
        chosen: the epoch whose model was taken.
    """
    found = []
    for name in [name for name in history if f"valid_{name}" in history]:
        train, valid = history[name], history[f"valid_{name}"]
        if not np.isfinite([*train, *valid]).any():
            found.append({"name": name, "image": "", "alt": ""})
            continue
        picture = figures.training_curve(history["epoch"], train, valid, name, chosen)
        found.append(
            {
                "name": name,
                "image": data_uri(picture, "image/svg+xml"),
                "alt": figures.describe_curve(history, name),
            }
        )
    return found
