"""The detections of windows as arrays, in pixels of the slide."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import cv2
import numpy as np

from gigatile.instances.detection import Detection
from gigatile.instances.window_grid import WindowGrid

# A detection that ends less than this from a border of its window may be cut there, in pixels.
# Masks of the same object differ by about a pixel.
BORDER = 2
# A fragment that reaches at most this far into its window is dropped, as such thin masks cannot be
# matched: the neighbouring window shows its pixels far from the border, and more of the object.
SLIVER = 8


@dataclass
class WindowDetections:
    """Detections in pixels of the slide, as arrays of n.

    Attributes:
        boxes: (n, 4) int64, the smallest that contain the masks.
        windows: the number of the window of each.
        categories, scores, areas: of each; areas in pixels.
        masks: of each, (rows, columns) uint8, 0 or 1.
        cut: whether a border of the window that is inside the slide may cut it.
        depths: the smallest distance, in pixels, that it reaches from such a border.
        owners: the number of the window whose core has its centre; see `WindowGrid.owners`. If the
            centre is not in the mask, then the pixel of the mask that is nearest to it.
        supported: whether the owner shows a part of it that is cut there.
        shared: whether another window shows a part of it.
        covered: whether it is part of an object that another window detects whole.
    """

    boxes: np.ndarray = field(default_factory=lambda: np.empty((0, 4), np.int64))
    windows: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    categories: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    scores: np.ndarray = field(default_factory=lambda: np.empty(0))
    areas: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    masks: np.ndarray = field(default_factory=lambda: np.empty(0, object))
    cut: np.ndarray = field(default_factory=lambda: np.empty(0, bool))
    depths: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    owners: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    supported: np.ndarray = field(default_factory=lambda: np.empty(0, bool))
    shared: np.ndarray = field(default_factory=lambda: np.empty(0, bool))
    covered: np.ndarray = field(default_factory=lambda: np.empty(0, bool))

    def __len__(self) -> int:
        return len(self.masks)

    def __getitem__(self, index: np.ndarray) -> "WindowDetections":
        return WindowDetections(**{name: values[index] for name, values in vars(self).items()})

    def __add__(self, others: "WindowDetections") -> "WindowDetections":
        return WindowDetections(
            **{
                name: np.concatenate([values, getattr(others, name)])
                for name, values in vars(self).items()
            }
        )

    def order(self) -> np.ndarray:
        """Return the order by position, independent of the order in which they were added."""
        y1, x1, y2, x2 = self.boxes.T
        keys = (self.windows, -self.scores, self.categories, -self.areas, x2, y2, x1, y1)
        return np.lexsort(keys)


def describe_detections(
    grid: WindowGrid, windows: Sequence[tuple[int, Sequence[Detection]]]
) -> WindowDetections:
    """Return the detections of windows without slivers and empty masks.

    Args:
        grid: the windows.
        windows: the number of each and its detections, in pixels of the window.

    Raises:
        ValueError: a detection leaves its window.
    """
    masks, numbers = [], []
    for window, some in windows:
        for detection in some:
            pixels = np.asarray(detection.mask, bool).view(np.uint8)
            x, y, width, height = cv2.boundingRect(pixels) if pixels.size else (0, 0, 0, 0)
            if not width:
                continue
            if (height, width) != pixels.shape or pixels.base is not detection.mask:
                # A copy does not keep the memory of a larger array.
                pixels = pixels[y : y + height, x : x + width].copy()
            top, left = detection.top + y, detection.left + x
            masks.append(pixels)
            numbers.append(
                (
                    *(window, top, left, top + height, left + width),
                    *(detection.category, cv2.countNonZero(pixels), detection.score),
                    *_twice_centre(pixels),
                )
            )
    if not masks:
        return WindowDetections()
    table = np.array(numbers, np.float64)
    whole = table[:, :7].astype(np.int64)
    window_of, boxes = whole[:, 0], whole[:, 1:5]
    limits = grid.boxes[window_of]
    boxes += np.tile(limits[:, :2], 2)
    low, high = boxes[:, :2], boxes[:, 2:]
    if (low < limits[:, :2]).any() or (high > limits[:, 2:]).any():
        raise ValueError("a detection leaves its window")
    gaps = np.hstack([low - limits[:, :2], limits[:, 2:] - high])
    cuts = grid.inner_borders[window_of] & (gaps < BORDER)
    depths = np.hstack([high - limits[:, :2], limits[:, 2:] - low])
    exclusive = grid.exclusive_boxes[window_of]
    alone = (low >= exclusive[:, :2]) & (high <= exclusive[:, 2:])
    objects = np.empty(len(masks), object)
    objects[:] = masks
    detections = WindowDetections(
        boxes=boxes,
        windows=window_of,
        categories=whole[:, 5],
        scores=table[:, 7],
        areas=whole[:, 6],
        masks=objects,
        cut=np.any(cuts, axis=1),
        depths=np.where(cuts, depths, np.iinfo(np.int64).max).min(axis=1),
        owners=grid.owners(2 * low + table[:, 8:].astype(np.int64)),
        supported=np.zeros(len(masks), bool),
        shared=np.logical_not(np.all(alone, axis=1)),
        covered=np.zeros(len(masks), bool),
    )
    return detections[np.flatnonzero(detections.depths > SLIVER)]


def _twice_centre(mask: np.ndarray) -> tuple[int, int]:
    """Return twice the centre y, x of a mask, or of its pixel that is nearest to the centre."""
    height, width = mask.shape
    if mask[height // 2, width // 2]:
        return height, width
    rows, columns = (2 * indices + 1 for indices in np.nonzero(mask))
    nearest = np.argmin((rows - height) ** 2 + (columns - width) ** 2)
    return int(rows[nearest]), int(columns[nearest])
