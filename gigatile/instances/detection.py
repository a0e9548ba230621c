"""A detected instance."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class Detection:
    """An instance, as detected in an image or a window, or joined from several windows.

    Attributes:
        mask: (rows, columns) bool.
        top, left: first row and column of the mask, in pixels of the image, window or slide.
        category: index of its class, from 0.
        score: of the detector, 0 to 1.
        box: as the detector predicts it, (4,) float64; None: it was joined, and has the box of its
            mask.
        cut: whether it is a fragment without a match: a border of its window cuts it.
    """

    mask: np.ndarray
    top: int
    left: int
    category: int
    score: float
    box: np.ndarray | None = None
    cut: bool = False

    @property
    def crop(self) -> tuple[int, int, int, int]:
        """The rows and columns of the mask as a box: y1, x1, y2, x2."""
        rows, columns = self.mask.shape
        return self.top, self.left, self.top + rows, self.left + columns
