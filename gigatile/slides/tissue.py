"""Tissue and background, decided on a low-resolution overview of a slide."""

from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np

from gigatile.slides.grid import Grid
from gigatile.slides.reader import SlideError

# The overview on which tissue is recognised: a tile spans this many of its pixels, unless the
# slide is so large that the overview would have more a side than this.
MASK_PIXELS_PER_TILE = 16
MASK_LONGEST = 4096
# Otsu's threshold splits any picture in two, also one of tissue alone or of glass alone. Glass
# of real scanners stays below the lower bound of saturation, and stained tissue above the upper.
SATURATION_BOUNDS = (13, 31)
# A brightfield slide is lit from below: its median pixel is bright, even where tissue covers all.
DARK = 64
# Glass, which is what remains of a brightfield slide in a wide black frame: as bright as this.
LIT = 200
# In fluorescence, tissue is brighter than the slide's median pixel by at least so much.
GLOW = 10
# A slide is without tissue when less than this share of it, in a thousand, is stained.
MIN_TISSUE = 0.001
# Tissue or background of fewer connected pixels of the overview is dust, or a gap between cells: a
# sixteenth of a tile, which spans 16 × 16 of them.
SPECK = 16

Light = Literal["transmitted", "fluorescence"]


@dataclass(frozen=True)
class Tissue:
    """Where a slide's tissue lies.

    Attributes:
        mask: (height, width) bool over the overview, true on tissue.
        threshold: above it a pixel is tissue: of saturation (0-255) in transmitted light, of
            brightness (0-255) in fluorescence. Otsu's threshold (Otsu 1979) kept within bounds.
        light: how the slide was lit.
    """

    mask: np.ndarray
    threshold: int
    light: Light


def find_tissue(overview: np.ndarray) -> Tissue:
    """Tell tissue from background, and dust and pores from both.

    Args:
        overview: RGB pixels, (height, width, 3) uint8.

    Raises:
        SlideError: the slide has no tissue.
    """
    brightness, darkest = extremes(overview)
    if _is_dark(brightness):
        median = int(np.median(brightness))
        threshold = max(_otsu(brightness), median + GLOW)
        mask, light, seen = brightness > threshold, "fluorescence", "bright (brightness"
    else:
        saturation = _saturation(brightness, darkest)
        low, high = SATURATION_BOUNDS
        threshold = int(np.clip(_otsu(saturation), low, high))
        mask, light, seen = saturation > threshold, "transmitted", "stained (saturation"
    mask = _without_specks(mask)
    if mask.mean() < MIN_TISSUE:
        raise SlideError(
            f"it has no tissue: {100 * mask.mean():.2f} % of it is {seen} above {threshold} of 255)"
        )
    return Tissue(mask, threshold, light)  # type: ignore[arg-type]


def _is_dark(brightness: np.ndarray) -> bool:
    """Return whether a slide is lit from above, its background dark as in fluorescence."""
    if np.median(brightness) >= DARK:
        return False
    lit = brightness[brightness >= DARK]
    return not lit.size or float(np.median(lit)) < LIT


def _without_specks(mask: np.ndarray) -> np.ndarray:
    """Drop tissue of fewer than `SPECK` connected pixels, then fill as small gaps in tissue."""
    # Diagonal neighbours hold tissue together, and do not hold gaps together.
    for value, connectivity in ((True, 8), (False, 4)):
        one = (mask == value).view(np.uint8)
        _, labels, stats, _ = cv2.connectedComponentsWithStats(one, connectivity=connectivity)
        small = stats[:, cv2.CC_STAT_AREA] < SPECK
        if small.any():
            mask = np.where(small[labels], not value, mask)
    return mask


def tissue_fractions(mask: np.ndarray, downsample: tuple[float, float], grid: Grid) -> np.ndarray:
    """Return the share of tissue of each tile, row by row: (n,) float64 in 0-1.

    Args:
        mask: (height, width) bool over the whole slide.
        downsample: level-0 pixels per pixel of the mask, across and down.
        grid: the tiles. Their edges may cut through pixels of the mask; those count by area.
    """
    # The integral of the mask, linear between its samples, is exact at fractional positions.
    if not mask.any():
        return np.zeros(grid.columns * grid.rows)
    # In whole numbers of 4 bytes: the mask of a large slide has tens of millions of pixels.
    integral = cv2.integral(mask.view(np.uint8), sdepth=cv2.CV_32S)
    left, top = (grid.corners() / downsample).T
    width, height = grid.extent / downsample[0], grid.extent / downsample[1]

    def total(y: np.ndarray, x: np.ndarray) -> np.ndarray:
        y, x = y.clip(0, mask.shape[0]), x.clip(0, mask.shape[1])
        row = np.minimum(y.astype(int), mask.shape[0] - 1)
        column = np.minimum(x.astype(int), mask.shape[1] - 1)
        v, u = y - row, x - column
        upper = integral[row, column] * (1 - u) + integral[row, column + 1] * u
        lower = integral[row + 1, column] * (1 - u) + integral[row + 1, column + 1] * u
        return upper * (1 - v) + lower * v

    bottom, right = top + height, left + width
    covered = total(bottom, right) - total(top, right) - total(bottom, left) + total(top, left)
    return np.clip(covered / (width * height), 0, 1)


def extremes(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the highest and the lowest of each pixel's three colours: (height, width) uint8."""
    red, green, blue = cv2.split(pixels)
    return cv2.max(cv2.max(red, green), blue), cv2.min(cv2.min(red, green), blue)


def _saturation(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Return HSV saturation, 0-255: (height, width) uint8. Black has none."""
    spread = (high - low).astype(np.uint16) * 255
    return (spread // np.maximum(high, 1)).astype(np.uint8)


def _otsu(values: np.ndarray) -> int:
    """Return Otsu's threshold of uint8 values: it maximises the variance between two classes."""
    counts = np.bincount(values.ravel(), minlength=256).astype(np.float64)
    levels = np.arange(256)
    below = counts.cumsum()
    above = below[-1] - below
    weighted = (counts * levels).cumsum()
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = weighted / below - (weighted[-1] - weighted) / above
        between = np.nan_to_num(below * above * gap**2)
    return int(between.argmax())
