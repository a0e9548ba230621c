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
    of_map, of_tiles = (np.concatenate([pair[k] for pair in pairs]) for k in (0, 1))
    rank = None
    if len(of_map) > 1 and np.ptp(of_map[:, number]) > 0 and np.ptp(of_tiles[:, number]) > 0:
        rank = float(spearmanr(of_map[:, number], of_tiles[:, number]).statistic)
    return Agreement(
        len(of_map),
        rank,
        _auc(of_tiles, of_map[:, number], number),
        _auc(of_map, of_tiles[:, number], number),
    )


def _auc(predicting: np.ndarray, scores: np.ndarray, number: int) -> float | None:
    predicted = predicting.argmax(axis=1) == number
    if predicted.all() or not predicted.any():
        return None
    return float(roc_auc_score(predicted, scores))


def matched(of_map: TileScores, of_tiles: TileScores) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of both maps for the tiles that both have, (tiles, classes) each."""
    corners = list(zip(of_map.x.tolist(), of_map.y.tolist(), strict=True))
    rows = {corner: row for row, corner in enumerate(corners)}
    pairs = [
        (rows[corner], other)
        for other, corner in enumerate(zip(of_tiles.x.tolist(), of_tiles.y.tolist(), strict=True))
        if corner in rows
    ]
    first, second = np.array(pairs, np.int64).reshape(-1, 2).T
    return of_map.scores[first], of_tiles.scores[second]
