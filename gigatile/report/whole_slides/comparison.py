"""The agreement of the maps of whole slides with the heat maps of a tile classifier."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from gigatile.report.slides.inputs import TileScores


@dataclass(frozen=True)
class Agreement:
    """The agreement of two maps on the tiles that both have, for one class.

    Attributes:
        tiles: the number of these tiles.
        rank: Spearman's rank correlation of the scores; None: not defined.
        by_tiles: ROC AUC of the map against the class that the tile classifier predicts for each
            tile; None: it predicts one class for all.
        by_map: the same with the two exchanged.
    """

    tiles: int
    rank: float | None
    by_tiles: float | None
    by_map: float | None


def agreement(pairs: Sequence[tuple[np.ndarray, np.ndarray]], number: int) -> Agreement:
    """Return the agreement on the tiles of some slides.

    Args:
        pairs: for each slide the scores of the map and of the tile classifier, (tiles, classes).
        number: of the class.
    """
    ours, theirs = (np.concatenate([pair[k] for pair in pairs]) for k in (0, 1))
    rank = None
    if len(ours) > 1 and np.ptp(ours[:, number]) > 0 and np.ptp(theirs[:, number]) > 0:
        rank = float(spearmanr(ours[:, number], theirs[:, number]).statistic)
    return Agreement(
        len(ours),
        rank,
        _auc(theirs, ours[:, number], number),
        _auc(ours, theirs[:, number], number),
    )


def _auc(predicting: np.ndarray, scores: np.ndarray, number: int) -> float | None:
    predicted = predicting.argmax(axis=1) == number
    if predicted.all() or not predicted.any():
        return None
    return float(roc_auc_score(predicted, scores))


def matched(ours: TileScores, theirs: TileScores) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of both maps for the tiles that both have, (tiles, classes) each."""
    corners = {
        corner: k for k, corner in enumerate(zip(ours.x.tolist(), ours.y.tolist(), strict=True))
    }
    pairs = [
        (corners[corner], k)
        for k, corner in enumerate(zip(theirs.x.tolist(), theirs.y.tolist(), strict=True))
        if corner in corners
    ]
    mine, other = np.array(pairs, np.int64).reshape(-1, 2).T
    return ours.scores[mine], theirs.scores[other]
