"""The agreement of the maps of whole slides with the heat maps of a tile classifier."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from gigatile.report.slides import heatmap
from gigatile.report.slides.inputs import TileScores
from gigatile.report.whole_slides.maps import PositionMap
from gigatile.slides.state import TileGrid


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


def matched(
    positions: PositionMap, other: TileScores, grid: TileGrid, classes: Sequence[str], source: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of both maps for the tiles that both have, (tiles, classes) each.

    Args:
        positions: the map of a slide.
        other: the scores of the tile classifier.
        grid: of its tiles.
        classes: of both.
        source: file and slide of `other`, for messages.
    """
    cells, scores = positions.cell_scores(classes, grid)
    column, row = heatmap.cells(other, grid, source)
    _, first, second = np.intersect1d(cells, row * grid.columns + column, return_indices=True)
    return scores[first], other.scores[second]
