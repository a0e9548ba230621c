"""Overlapping windows over a slide."""

import math
from functools import cached_property

import numpy as np

# With a smaller overlap, objects that a border cuts are too thin to be matched.
MIN_OVERLAP = 20


class WindowGrid:
    """Square windows over a slide, row by row.

    The last window of a row or column is moved back to end at the edge of the slide. If the slide
    is smaller than a window, the only window has the slide's size along that axis.

    Attributes:
        side, overlap: in pixels.
        rows, columns: for each row or column of windows, start and end in pixels: (n, 2) int64.
    """

    def __init__(self, height: int, width: int, side: int, overlap: int) -> None:
        """Divide a slide of this size, in pixels of the detector's input.

        Raises:
            ValueError: the overlap is below `MIN_OVERLAP` or above half of the side.
        """
        if not MIN_OVERLAP <= overlap <= side // 2:
            raise ValueError(
                f"windows of {side} pixels must overlap by {MIN_OVERLAP} to {side // 2} pixels, "
                f"not {overlap}"
            )
        self.side, self.overlap = side, overlap
        self.rows, self.columns = (_spans(size, side, overlap) for size in (height, width))

    def __len__(self) -> int:
        return len(self.rows) * len(self.columns)

    def box(self, window: int) -> tuple[int, int, int, int]:
        """Return the box of a window: y1, x1, y2, x2 in pixels."""
        row, column = divmod(window, len(self.columns))
        (y1, y2), (x1, x2) = self.rows[row].tolist(), self.columns[column].tolist()
        return y1, x1, y2, x2

    @cached_property
    def boxes(self) -> np.ndarray:
        """The boxes of all windows: (n, 4) int64."""
        rows = np.repeat(self.rows, len(self.columns), axis=0)
        columns = np.tile(self.columns, (len(self.rows), 1))
        return np.stack([rows[:, 0], columns[:, 0], rows[:, 1], columns[:, 1]], axis=1)

    @cached_property
    def inner_borders(self) -> np.ndarray:
        """Whether each border of each window is inside the slide: (n, 4) bool."""
        low = self.boxes[:, :2] > 0
        return np.hstack([low, self.boxes[:, 2:] < self.boxes[:, 2:].max(axis=0)])

    def owners(self, twice: np.ndarray) -> np.ndarray:
        """Return the window whose core has a position: (n,) int64.

        The core is the window without half of each overlap, so the cores cover the slide once.

        Args:
            twice: twice the positions y, x in pixels, (n, 2) int64, as centres may be half a pixel.
        """
        row, column = (
            np.searchsorted(spans[:-1, 1] + spans[1:, 0], values, side="right")
            for spans, values in zip((self.rows, self.columns), twice.T, strict=True)
        )
        return np.asarray(row * len(self.columns) + column)

    @cached_property
    def exclusive_boxes(self) -> np.ndarray:
        """The box of each window that no other window shows; may be empty: (n, 4) int64.

        It is unlimited at the edges of the slide.
        """
        low, high = [], []
        for spans in (self.rows, self.columns):
            low.append(np.concatenate([[np.iinfo(np.int64).min], spans[:-1, 1]]))
            high.append(np.concatenate([spans[1:, 0], [np.iinfo(np.int64).max]]))
        row, column = np.divmod(np.arange(len(self)), len(self.columns))
        return np.stack([low[0][row], low[1][column], high[0][row], high[1][column]], axis=1)


def _spans(size: int, side: int, overlap: int) -> np.ndarray:
    count = max(1, math.ceil((size - overlap) / (side - overlap)))
    starts = np.minimum(np.arange(count) * (side - overlap), max(0, size - side))
    return np.stack([starts, np.minimum(starts + side, size)], axis=1)
