"""The pictures of a sample sheet."""

import numpy as np

from gigatile.training.sample_sheet import GAP


def cells(picture: np.ndarray, side: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the pictures of each pair, by their places."""
    pairs = []
    for top in range(GAP, picture.shape[0] - GAP, side + 2 * GAP):
        for left in range(GAP, picture.shape[1] - GAP, 2 * side + 3 * GAP):
            pairs.append(
                tuple(
                    picture[top : top + side, first : first + side]
                    for first in (left, left + side + GAP)
                )
            )
    return pairs
