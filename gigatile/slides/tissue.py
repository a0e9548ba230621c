"""Tissue and background, decided on a low-resolution overview of a slide."""

import math
from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np

from gigatile.settings.tiles import TileSettings
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
# In fluorescence, tissue is brighter than the background by at least so much.
GLOW = 10
# A slide has no tissue if less than a thousandth of it is stained, and this covers less than a
# square of 128 µm: the smallest region of CLAM's preset for biopsies, 512 px at 0.25 µm per pixel.
# The fraction alone would refuse a needle biopsy on a large scan.
MIN_TISSUE = 0.001
MIN_TISSUE_UM2 = 128**2
# Pixels less saturated than the threshold still belong to tissue that they touch, if they are above
# this many spreads (median absolute deviations, scaled to a standard deviation) of the glass.
SPREADS = 3.0
_MAD_TO_DEVIATION = 1.4826
# Tissue or background of fewer connected pixels of the overview is dust, or a gap between cells: a
# sixteenth of a tile, which spans 16 × 16 of them.
SPECK = 16
# The commonest scale, for the sizes of gaps and holes on a slide without a scale of its own.
ASSUMED_MPP = 0.5

Light = Literal["transmitted", "fluorescence"]


@dataclass(frozen=True)
class Tissue:
    """Where a slide's tissue lies.

    Attributes:
        mask: (height, width) bool over the overview, true on the regions of tissue, with the gaps
            and holes that belong to them.
        stained: (height, width) bool, the part of `mask` that is itself stained (or bright, in
            fluorescence).
        threshold: above it a pixel is tissue: of saturation (0-255) in transmitted light, of
            brightness (0-255) in fluorescence. Otsu's threshold (Otsu 1979) kept within bounds.
        light: how the slide was lit.
    """

    mask: np.ndarray
    stained: np.ndarray
    threshold: int
    light: Light


def region_sizes(
    settings: TileSettings, mpp: float | None, downsample: tuple[float, float]
) -> tuple[float, float, float]:
    """Return the sizes that `find_tissue` needs, in pixels of the overview.

    These are the widest gap (px) and the largest hole (px²) that count as tissue, and the stained
    area (px²) that is enough for a slide.

    Args:
        settings: with both in micrometres.
        mpp: micrometres per pixel of level 0; None is taken for `ASSUMED_MPP`.
        downsample: level-0 pixels per pixel of the overview, across and down.
    """
    area = (mpp or ASSUMED_MPP) ** 2 * downsample[0] * downsample[1]  # µm² of a pixel
    gap, hole = settings.close_gaps_um / math.sqrt(area), settings.fill_holes_um2 / area
    return gap, hole, MIN_TISSUE_UM2 / area


def find_tissue(
    overview: np.ndarray, gap: float = 0, hole: float = 0, enough: float = math.inf
) -> Tissue:
    """Find the regions of tissue on an overview.

    1. A stained pixel is tissue. Two thresholds (Canny 1986): a paler pixel is tissue too, if it
       differs from the slide's own glass and is connected to a pixel above the first threshold.
       Averaged over a pixel of the overview, a thin wall of lung is pale.
    2. Closing (a dilation by half of `gap`, then an erosion by as much) joins tissue over gaps.
    3. Regions of fewer than `SPECK` pixels are dust.
    4. Background enclosed by a region, and smaller than `hole`, belongs to it.

    Closing and holes filtered by area are those of CLAM (Lu et al. 2021, `segmentTissue`, whose
    preset for TCGA fills holes of up to four squares of 512 px) and of TRIDENT (Zhang et al. 2025).

    Args:
        overview: RGB pixels, (height, width, 3) uint8.
        gap: width in pixels up to which a gap between tissue and tissue is closed.
        hole: area in pixels below which background enclosed by tissue, or more by tissue than by
            the edge of the slide, belongs to the tissue; fewer than `SPECK` always do.
        enough: stained pixels with which a slide has tissue, even if they are less than
            `MIN_TISSUE` of the overview.

    Raises:
        SlideError: the slide has no tissue.
    """
    brightness, darkest = extremes(overview)
    light: Light
    counts = _histogram(brightness)
    if _is_dark(counts):
        light, seen = "fluorescence", "bright (brightness"
        threshold = _glow_threshold(counts)
        certain = stained = brightness > threshold
    else:
        light, seen = "transmitted", "stained (saturation"
        saturation = _saturation(brightness, darkest)
        low, high = SATURATION_BOUNDS
        counts = _histogram(saturation)
        threshold = int(np.clip(_otsu(counts), low, high))
        certain = saturation > threshold
        stained = saturation > min(threshold, max(low, _above_glass(counts[: threshold + 1])))
    closed = _closed(stained, gap)
    regions = _regions(closed, certain)
    stained = stained & regions
    pixels = np.count_nonzero(stained)
    if pixels < min(MIN_TISSUE * stained.size, enough):
        raise SlideError(
            f"it has no tissue: {100 * pixels / stained.size:.2f} % of it is {seen} above "
            f"{threshold} of 255)"
        )
    return Tissue(_without_holes(regions, hole), stained, threshold, light)


def _is_dark(counts: np.ndarray) -> bool:
    """Return whether a slide is lit from above, its background dark as in fluorescence.

    Args:
        counts: histogram of brightness, (256,) int64.
    """
    if _median(counts) >= DARK:
        return False
    return not counts[DARK:].any() or DARK + _median(counts[DARK:]) < LIT


def _glow_threshold(counts: np.ndarray) -> int:
    """Return the brightness above which a pixel of a fluorescence slide is tissue.

    Nuclei are ten times as bright as the tissue around them, and that is a few times as bright as
    the empty background. Otsu's threshold divides nuclei from the rest; on a scale of ratios (the
    logarithm of brightness) it divides the specimen from the background.

    Args:
        counts: histogram of brightness, (256,) int64.
    """
    most = max(_otsu(counts), int(_median(counts)) + GLOW)
    scale = np.log2(np.arange(256) + 1)
    ratios = np.rint(scale * 255 / scale[-1]).astype(np.uint8)
    limit = _otsu(np.bincount(ratios, counts, minlength=256))
    dark = counts * (ratios <= limit)
    if not dark.any():  # one brightness only
        return most
    brightest_dark = int(np.flatnonzero(dark).max())
    return min(most, max(brightest_dark, int(_median(dark)) + GLOW))


def _above_glass(counts: np.ndarray) -> int:
    """Return the saturation above which a pixel is unlikely to be glass.

    Args:
        counts: histogram of the saturation of glass, (n,) int64.
    """
    if not counts.any():
        return 255
    median = _median(counts)
    deviations = np.abs(np.arange(len(counts)) - median)
    order = np.argsort(deviations)
    spread = _median(counts[order], deviations[order])
    return math.ceil(median + SPREADS * _MAD_TO_DEVIATION * spread)


def _histogram(values: np.ndarray) -> np.ndarray:
    """Return how many of some uint8 values (height, width) there are of each: (256,) int64."""
    # OpenCV gives float32, which counts exactly up to 2^24, so not all rows at once.
    rows = max(1, (1 << 24) // values.shape[1])
    parts = [values[top : top + rows] for top in range(0, len(values), rows)]
    counts = [cv2.calcHist([part], [0], None, [256], [0, 256]) for part in parts]
    return np.array(counts, np.int64).reshape(-1, 256).sum(axis=0)


def _median(counts: np.ndarray, values: np.ndarray | None = None) -> float:
    """Return the median of a histogram that is not empty.

    Args:
        counts: how often each value occurs, (n,) int64.
        values: ascending, (n,); None: 0, 1, 2 and so on.
    """
    below = counts.cumsum()
    total = int(below[-1])
    middle = np.searchsorted(below, [(total + 1) // 2, total // 2 + 1])
    return float((middle if values is None else values[middle]).mean())


def _closed(mask: np.ndarray, gap: float) -> np.ndarray:
    """Join what is true over gaps of up to `gap` pixels; the slide's surroundings are false."""
    # By distances, which take the same time for any width; to half a pixel beyond both borders.
    reach = gap / 2
    if reach < 1:
        return mask
    rim = math.ceil(reach) + 1
    padded = cv2.copyMakeBorder(
        (~mask).view(np.uint8), rim, rim, rim, rim, cv2.BORDER_CONSTANT, value=1
    )
    grown = (cv2.distanceTransform(padded, cv2.DIST_L2, 5) <= reach).view(np.uint8)
    shrunk = cv2.distanceTransform(grown, cv2.DIST_L2, 5) > reach
    return mask | shrunk[rim:-rim, rim:-rim]


def _regions(mask: np.ndarray, certain: np.ndarray) -> np.ndarray:
    """Return the parts of `mask` of `SPECK` connected pixels or more that hold a `certain` one."""
    # Diagonal neighbours hold tissue together.
    _, labels, stats, _ = cv2.connectedComponentsWithStats(mask.view(np.uint8), connectivity=8)
    chosen = np.zeros(len(stats), bool)
    chosen[labels[certain]] = True
    chosen &= stats[:, cv2.CC_STAT_AREA] >= SPECK
    chosen[0] = False
    return chosen[labels]


def _without_holes(mask: np.ndarray, hole: float) -> np.ndarray:
    """Fill background of fewer than `hole` connected pixels, and of fewer than `SPECK` anyway."""
    # Diagonal neighbours do not hold gaps together.
    count, labels, stats, _ = cv2.connectedComponentsWithStats(
        (~mask).view(np.uint8), connectivity=4
    )
    area = stats[:, cv2.CC_STAT_AREA]
    small = area < max(hole, SPECK)
    # Beside the slide's edge, glass is enclosed where it borders on more tissue than edge.
    edge = np.concatenate([labels[[0, -1]].ravel(), labels[:, [0, -1]].ravel()])
    on_edge = np.bincount(edge, minlength=count)
    cross = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))
    beside = cv2.dilate(mask.view(np.uint8), cross).view(bool) & ~mask
    small &= (on_edge < np.bincount(labels[beside], minlength=count)) | (area < SPECK)
    return mask | small[labels] if small.any() else mask


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


def _otsu(counts: np.ndarray) -> int:
    """Return Otsu's threshold: it maximises the variance between two classes.

    Args:
        counts: histogram of uint8 values, (256,).
    """
    levels = np.arange(256)
    below = counts.cumsum(dtype=np.float64)
    above = below[-1] - below
    weighted = (counts * levels).cumsum()
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = weighted / below - (weighted[-1] - weighted) / above
        between = np.nan_to_num(below * above * gap**2)
    return int(between.argmax())
