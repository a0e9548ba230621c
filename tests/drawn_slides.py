"""Slides with dark nuclei on a light background, and a detector that needs no training."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from gigatile.demo.svs import write_svs
from gigatile.instances.detection import Detection

# Nuclei lie in the cells of a grid, so that none touch.
CELL = 24
LIGHT, DARK = (225, 190, 215), (95, 60, 130)


@dataclass
class DrawnSlide:
    """A slide and its nuclei.

    Attributes:
        path: of the file.
        height, width: in pixels.
        centroids: of the nuclei, x and y, (n, 2).
        areas: in pixels, (n,).
    """

    path: Path
    height: int
    width: int
    centroids: np.ndarray
    areas: np.ndarray


def draw_slide(
    path: Path, rows: int, columns: int, seed: int = 0, mpp: float = 0.5, share: float = 1.0
) -> DrawnSlide:
    """Draw a slide of `rows` × `columns` cells, a `share` of which has a nucleus."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:CELL, :CELL] + 0.5
    stamps = []
    for _ in range(64):
        row, column = random.uniform(CELL / 2 - 3, CELL / 2 + 3, 2)
        height, width = random.uniform(4.5, 8, 2)
        stamps.append(((y - row) / height) ** 2 + ((x - column) / width) ** 2 < 1)
    centres = np.array([[x[stamp].mean(), y[stamp].mean()] for stamp in stamps])
    areas = np.array([stamp.sum() for stamp in stamps])
    choice = random.integers(0, len(stamps), (rows, columns))
    present = random.random((rows, columns)) < share
    patterns = np.array([*stamps, np.zeros_like(stamps[0])])[np.where(present, choice, -1)]
    mask = patterns.swapaxes(1, 2).reshape(rows * CELL, columns * CELL)
    pixels = np.where(mask[..., None], np.uint8(DARK), np.uint8(LIGHT))
    write_svs(path, pixels, mpp=mpp, objective_power=20)
    corners = np.argwhere(present)[:, ::-1] * CELL
    kinds = choice[present]
    return DrawnSlide(path, *mask.shape, corners + centres[kinds], areas[kinds])


class DarkObjects:
    """Detects dark objects; see `gigatile.instances.slide_detection.WindowDetector`."""

    categories = ("nucleus",)
    sha256 = "0" * 64

    def __init__(self, limit: int = 100_000, score: float = 0.9) -> None:
        self.limit, self.score = limit, score

    def detect_windows(self, windows: Sequence[np.ndarray]) -> list[list[Detection]]:
        """Return the connected dark areas of each window."""
        return [self._detect(window)[: self.limit] for window in windows]

    def _detect(self, window: np.ndarray) -> list[Detection]:
        dark = (window[..., 1] < 125).view(np.uint8)
        _, labels, stats, _ = cv2.connectedComponentsWithStats(dark, connectivity=4)
        detections = []
        for label, (left, top, width, height, area) in enumerate(stats[1:].tolist(), 1):
            if area > 3:
                mask = labels[top : top + height, left : left + width] == label
                detections.append(Detection(mask, top, left, 0, self.score))
        return detections
