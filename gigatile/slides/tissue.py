"""Find tissue and background on a low-resolution overview of a slide."""

import math
from dataclasses import dataclass

import cv2
import numpy as np

from gigatile.settings.tiles import TileSettings
from gigatile.slides.grid import Grid
from gigatile.slides.reader import SlideError
from gigatile.slides.state import Illumination

# A tile spans this many pixels of the overview; and the longest side of the overview in pixels, to
# which larger slides are shrunk further.
MASK_PIXELS_PER_TILE = 16
MASK_LONGEST = 4096
# Otsu's threshold divides any picture in two, even if it shows only tissue or only glass. On real
# scans, the saturation of glass is below the lower bound, and that of stained tissue above the
# upper bound.
SATURATION_BOUNDS = (13, 31)
# The median pixel of a brightfield slide is brighter than this, even if it is covered by tissue.
DARK = 64
# Glass is at least this bright. A brightfield slide in a wide black frame is recognised by it.
LIT = 200
# In fluorescence, tissue is brighter than the background by at least this.
GLOW = 10
# A slide has no tissue if less than this fraction of it is stained, and the stained area is less
# than a square of 128 µm: the smallest region in CLAM's preset for biopsies, 512 px at 0.25 µm per
# pixel. The fraction alone would refuse a needle biopsy on a large scan.
MIN_TISSUE = 0.001
MIN_TISSUE_UM2 = 128**2
# Pixels below the threshold belong to tissue that they touch if their saturation is this many
# standard deviations (estimated by the median absolute deviation) above the median of the glass.
DEVIATIONS = 3.0
_MAD_TO_DEVIATION = 1.4826
# Tissue of fewer connected pixels of the overview is dust, and background a gap between cells. It
# is a sixteenth of a tile, which spans 16 × 16 pixels.
SPECK = 16
# The most common scale, for the sizes of gaps and holes on slides of unknown scale.
ASSUMED_MPP = 0.5


@dataclass(frozen=True)
class Tissue:
    """The tissue of a slide.

    Attributes:
        mask: (height, width) bool, true on pixels of the overview in tissue regions, including
            their closed gaps and filled holes.
        stained: (height, width) bool, the part of `mask` that is stained (bright, in fluorescence).
        threshold: saturation (0-255) above which a pixel is tissue; brightness, in fluorescence.
            Otsu's threshold (Otsu 1979), clipped to bounds.
        illumination: of the slide.
    """

    mask: np.ndarray
    stained: np.ndarray
    threshold: int
    illumination: Illumination


def region_sizes(
    settings: TileSettings, mpp: float | None, downsample: tuple[float, float]
) -> tuple[float, float, float]:
    """Return `gap`, `hole` and `enough` of `find_tissue`, in pixels of the overview.

    Args:
        settings: have the gap and the hole in micrometres.
        mpp: micrometres per pixel of level 0; None: `ASSUMED_MPP`.
        downsample: level-0 pixels per pixel of the overview, across and down.
    """
    area = (mpp or ASSUMED_MPP) ** 2 * downsample[0] * downsample[1]  # of a pixel, µm²
    gap, hole = settings.close_gaps_um / math.sqrt(area), settings.fill_holes_um2 / area
    return gap, hole, MIN_TISSUE_UM2 / area


def find_tissue(
    overview: np.ndarray, gap: float = 0, hole: float = 0, enough: float = math.inf
) -> Tissue:
    """Find the regions of tissue on an overview.

    1. Hysteresis thresholding (Canny 1986): a stained pixel is tissue; so is a paler pixel that
       differs from the slide's glass and is connected to a stained one. At the overview's
       resolution, the thin alveolar walls of lung are pale.
    2. Closing (dilation by half of `gap`, then erosion by the same) joins tissue across gaps.
    3. Regions of fewer than `SPECK` pixels are removed as dust.
    4. Enclosed background that is smaller than `hole` is filled.

    Closing, and filling holes by area, follow CLAM (Lu et al. 2021, `segmentTissue`; its preset for
    TCGA fills holes of up to four squares of 512 px) and TRIDENT (Zhang et al. 2025).

    Args:
        overview: RGB pixels, (height, width, 3) uint8.
        gap: width in pixels up to which gaps in tissue are closed.
        hole: area in pixels below which background is filled if it is enclosed by tissue, or
            borders on more tissue than slide edge. Below `SPECK` it is always filled.
        enough: number of stained pixels that suffices, even if it is less than `MIN_TISSUE` of the
            overview.

    Raises:
        SlideError: the slide has no tissue.
    """
    brightness, darkest = extremes(overview)
    illumination: Illumination
    counts = _histogram(brightness)
    if _is_fluorescence(counts):
        illumination, measured = "fluorescence", "bright (brightness"
        threshold = _glow_threshold(counts)
        certain = stained = brightness > threshold
    else:
        illumination, measured = "transmitted", "stained (saturation"
        saturation = _saturation(brightness, darkest)
        low, high = SATURATION_BOUNDS
        counts = _histogram(saturation)
        threshold = int(np.clip(_otsu(counts), low, high))
        certain = saturation > threshold
        stained = saturation > min(threshold, max(low, _above_glass(counts[: threshold + 1])))
    regions = _regions(_close_gaps(stained, gap), certain)
    stained = stained & regions
    pixels = np.count_nonzero(stained)
    if pixels < min(MIN_TISSUE * stained.size, enough):
        raise SlideError(
            f"it has no tissue: {100 * pixels / stained.size:.2f} % of it is {measured} above "
            f"{threshold} of 255)"
        )
    return Tissue(_fill_holes(regions, hole), stained, threshold, illumination)


def _is_fluorescence(counts: np.ndarray) -> bool:
    """Return whether the background of a slide is dark.

    Args:
        counts: histogram of brightness, (256,) int64.
    """
    if _median(counts) >= DARK:
        return False
    return not counts[DARK:].any() or DARK + _median(counts[DARK:]) < LIT


def _glow_threshold(counts: np.ndarray) -> int:
    """Return the brightness above which a pixel of a fluorescence slide is tissue.

    Nuclei are ten times as bright as the surrounding tissue, which is a few times as bright as the
    background. Otsu's threshold of the brightness separates nuclei from the rest; Otsu's threshold
    of its logarithm separates tissue from background.

    Args:
        counts: histogram of brightness, (256,) int64.
    """
    highest = max(_otsu(counts), int(_median(counts)) + GLOW)
    log = np.log2(np.arange(256) + 1)
    log_levels = np.rint(log * 255 / log[-1]).astype(np.uint8)
    log_threshold = _otsu(np.bincount(log_levels, counts, minlength=256))
    dark = counts * (log_levels <= log_threshold)
    if not dark.any():  # a single brightness
        return highest
    brightest_dark = int(np.flatnonzero(dark).max())
    return min(highest, max(brightest_dark, int(_median(dark)) + GLOW))


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
    mad = _median(counts[order], deviations[order])
    return math.ceil(median + DEVIATIONS * _MAD_TO_DEVIATION * mad)


def _histogram(values: np.ndarray) -> np.ndarray:
    """Return the histogram of uint8 values (height, width): (256,) int64."""
    # OpenCV's histograms are float32, exact up to 2^24, so it gets fewer pixels at a time.
    rows = max(1, (1 << 24) // values.shape[1])
    parts = [values[top : top + rows] for top in range(0, len(values), rows)]
    counts = [cv2.calcHist([part], [0], None, [256], [0, 256]) for part in parts]
    return np.array(counts, np.int64).reshape(-1, 256).sum(axis=0)


def _median(counts: np.ndarray, values: np.ndarray | None = None) -> float:
    """Return the median of a non-empty histogram.

    Args:
        counts: of each value, (n,) int64.
        values: ascending, (n,); None: 0, 1, 2, …
    """
    below = counts.cumsum()
    total = int(below[-1])
    middle = np.searchsorted(below, [(total + 1) // 2, total // 2 + 1])
    return float((middle if values is None else values[middle]).mean())


def _close_gaps(mask: np.ndarray, gap: float) -> np.ndarray:
    """Return the closing of a mask, over gaps of up to `gap` pixels; outside the slide is false."""
    # The time of distance transforms does not depend on the width.
    radius = gap / 2
    if radius < 1:
        return mask
    margin = math.ceil(radius) + 1
    padded = cv2.copyMakeBorder(
        (~mask).view(np.uint8), margin, margin, margin, margin, cv2.BORDER_CONSTANT, value=1
    )
    dilated = (cv2.distanceTransform(padded, cv2.DIST_L2, 5) <= radius).view(np.uint8)
    eroded = cv2.distanceTransform(dilated, cv2.DIST_L2, 5) > radius
    return mask | eroded[margin:-margin, margin:-margin]


def _regions(mask: np.ndarray, certain: np.ndarray) -> np.ndarray:
    """Return the components of `mask` with `SPECK` pixels or more and a `certain` pixel."""
    # Diagonal neighbours connect tissue.
    _, labels, stats, _ = cv2.connectedComponentsWithStats(mask.view(np.uint8), connectivity=8)
    chosen = np.zeros(len(stats), bool)
    chosen[labels[certain]] = True
    chosen &= stats[:, cv2.CC_STAT_AREA] >= SPECK
    chosen[0] = False
    return chosen[labels]


def _fill_holes(mask: np.ndarray, hole: float) -> np.ndarray:
    """Fill enclosed background of fewer than `hole` pixels, and any of fewer than `SPECK`."""
    # Diagonal neighbours do not connect background.
    count, labels, stats, _ = cv2.connectedComponentsWithStats(
        (~mask).view(np.uint8), connectivity=4
    )
    area = stats[:, cv2.CC_STAT_AREA]
    small = area < max(hole, SPECK)
    # Background at the slide's edge counts as enclosed if it borders on more tissue than edge.
    edge = np.concatenate([labels[[0, -1]].ravel(), labels[:, [0, -1]].ravel()])
    on_edge = np.bincount(edge, minlength=count)
    cross = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))
    border = cv2.dilate(mask.view(np.uint8), cross).view(bool) & ~mask
    small &= (on_edge < np.bincount(labels[border], minlength=count)) | (area < SPECK)
    return mask | small[labels] if small.any() else mask


def mask_fractions(mask: np.ndarray, downsample: tuple[float, float], grid: Grid) -> np.ndarray:
    """Return the fraction of each tile's area that is true in a mask: (n,) float64 in 0-1.

    Args:
        mask: (height, width) bool over the whole slide.
        downsample: level-0 pixels per pixel of the mask, across and down.
        grid: the tile grid. Pixels of the mask that a tile covers in part count by area.
    """
    # The integral image with bilinear interpolation is exact at fractional positions.
    if not mask.any():
        return np.zeros(grid.columns * grid.rows)
    # 32-bit integers: the mask of a large slide has tens of millions of pixels.
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
    """Return the maximum and the minimum of each pixel's channels: (height, width) uint8."""
    red, green, blue = cv2.split(pixels)
    return cv2.max(cv2.max(red, green), blue), cv2.min(cv2.min(red, green), blue)


def _saturation(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Return the HSV saturation, 0-255: (height, width) uint8; 0 for black."""
    difference = (high - low).astype(np.uint16) * 255
    return (difference // np.maximum(high, 1)).astype(np.uint8)


def _otsu(counts: np.ndarray) -> int:
    """Return Otsu's threshold, which maximises the variance between two classes.

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
