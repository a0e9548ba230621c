"""Quality measures of brightfield slides: ink and folds on the overview, focus and more on tiles.

The thresholds are settings; see `gigatile.slides.tile_filter`.
"""

from typing import NamedTuple

import cv2
import numpy as np

from gigatile.slides.tissue import extremes

INKS = ("red", "green", "blue", "black")

# Haematoxylin, eosin and blood have hues of about 240-349 degrees; ink is recognised by a hue
# outside of this range. Glass can be tinted, but is less saturated and brighter than ink.
# Each box: the ranges of hue in degrees, and of saturation and brightness (HSV), 0-255.
_COLOURS = {
    "red": (((0, 25), (100, 255), (50, 242)), ((350, 360), (100, 255), (50, 242))),
    "green": (((70, 189), (35, 255), (40, 230)),),
    # Deep blue on tissue has the hue of haematoxylin, but is darker than nuclei on an overview.
    "blue": (((190, 236), (100, 255), (40, 230)), ((237, 250), (128, 255), (40, 130))),
}
# Black ink absorbs all colours equally, while dark nuclei and folds are violet. The highest
# brightness of black ink, and the largest difference between its RGB channels.
_BLACK = 110
_COLOURLESS = 24

# Tukey's fence in interquartile ranges; and the smallest interquartile range in grey levels: on
# evenly stained tissue, a little dirt would be beyond the fence.
_FENCE = 1.5
_MIN_RANGE = 40
# Size of the averaging filter in pixels of the overview: folds are wider than nuclei.
_SMOOTH = 5

# Smallest width and height in pixels.
SMALLEST_MEASURED = 16
# Parts of a row that must all have a step for it to count as a stripe.
_PARTS = 16
# A step minus the mean of the steps before and after it, from the brightness of four rows.
_STEP = np.array([[0.5, -1.5, 1.5, -0.5]], np.float32)
# Grey levels from which a pixel is clipped.
_WHITE = 250
_DARK = 5
# Mean squared difference of neighbouring pixels by noise on empty glass, in grey levels². It
# prevents noise from counting as fine detail.
_NOISE = 20.0


class PixelMeasures(NamedTuple):
    """Quality measures of a tile from its full-resolution grey levels.

    Attributes:
        sharpness: the share of fine detail in the differences of neighbouring pixels: 0 if
            brightness changes smoothly (out of focus), 1 if pixels are independent. The energy of
            second differences along x and y divided by three times that of first differences
            ("modified Laplacian" of Nayar and Nakajima 1994 and "energy of gradient", two focus
            measures in Pertuz 2013). The ratio hardly depends on the strength of the stain.
        contrast: standard deviation, in grey levels.
        clipped: fraction of pixels, 0-1, that are too bright or too dark to show detail.
        stripes: the largest step in grey levels between neighbouring rows or columns that is
            present in each sixteenth of the row or column. Tissue changes over several pixels but
            a stripe from one pixel to the next, so the mean of the steps before and after a step
            is subtracted from it.
    """

    sharpness: float
    contrast: float
    clipped: float
    stripes: float


def measure(tile: np.ndarray) -> PixelMeasures:
    """Measure the pixels of a tile: (height, width, 3) uint8 RGB.

    Each side has at least `SMALLEST_MEASURED` pixels.
    """
    grey = cv2.cvtColor(tile, cv2.COLOR_RGB2GRAY)
    near, far = _difference(grey, 1), _difference(grey, 2)
    half = grey[::2]  # every second row is enough for means over rows, in half the time
    unclipped = cv2.countNonZero(cv2.inRange(half, _DARK + 1, _WHITE - 1))
    return PixelMeasures(
        # For neighbours a, b, c, (2b - a - c)² = 2(b - a)² + 2(c - b)² - (c - a)², so second
        # differences need no filter. In pure noise far equals near, hence the factor 3.
        sharpness=max(0.0, 4 * near - far) / (3 * (near + _NOISE)),
        contrast=float(cv2.meanStdDev(half)[1][0, 0]),
        clipped=1 - unclipped / half.size,
        stripes=max(_step(grey), _step(cv2.transpose(half))),
    )


def ink_masks(overview: np.ndarray) -> dict[str, np.ndarray]:
    """Return masks of pen marks, by the colour of the ink.

    Red, green and blue ink have hues that stained tissue does not have, and are more saturated and
    darker than glass; black ink is dark and colourless. A black frame around the scanned area
    counts as black ink.

    Args:
        overview: RGB pixels, (height, width, 3) uint8.

    Returns:
        For each of `INKS`, (height, width) bool, true on that ink; a pixel has at most one ink.
    """
    hsv = cv2.cvtColor(overview, cv2.COLOR_RGB2HSV)
    masks = {}
    brightest, darkest = extremes(overview)
    black = (brightest <= _BLACK) & (brightest - darkest <= _COLOURLESS)
    for ink, boxes in _COLOURS.items():
        mask = np.zeros_like(black)
        for hue, *bounds in boxes:
            halved = hue[0] // 2, hue[1] // 2  # OpenCV's hue has steps of 2 degrees
            low, high = zip(halved, *bounds, strict=True)
            mask |= cv2.inRange(hsv, low, high).astype(bool)
        masks[ink] = mask
        black &= ~mask
    return masks | {"black": black}


def fold_mask(overview: np.ndarray, tissue: np.ndarray) -> np.ndarray:
    """Return a mask of folds: tissue that is far darker and more saturated than the slide's tissue.

    Two layers absorb light twice, so a fold has a higher saturation and a lower intensity. A pixel
    is part of a fold if the difference of both (Palokangas 2007; Kothari 2013) is above Tukey's
    upper fence (1977) of the slide's tissue: 1.5 interquartile ranges above the upper quartile.

    Args:
        overview: RGB pixels, (height, width, 3) uint8.
        tissue: (height, width) bool, true on tissue. It should exclude pen marks, which are dark
            and saturated too.

    Returns:
        (height, width) bool, true on folds; a subset of `tissue`.
    """
    if not tissue.any():
        return np.zeros_like(tissue)
    smooth = cv2.blur(overview, (_SMOOTH, _SMOOTH))
    saturation = cv2.extractChannel(cv2.cvtColor(smooth, cv2.COLOR_RGB2HSV), 1)
    red, green, blue = cv2.split(smooth)
    intensity = cv2.add(cv2.add(red, green, dtype=cv2.CV_16S), blue, dtype=cv2.CV_16S)
    # In thirds of a grey level, so that it fits into 16-bit integers.
    depth = 3 * saturation.astype(np.int16) - intensity
    lower, upper = np.percentile(depth[tissue], (25, 75))
    return tissue & (depth > upper + _FENCE * max(upper - lower, 3 * _MIN_RANGE))


def _difference(grey: np.ndarray, apart: int) -> float:
    """Return the mean squared difference of pixels at a distance of `apart`, across plus down."""
    across = grey[::2, apart:], grey[::2, :-apart]
    # All rows: in JPEG, pairs that start at even rows differ from pairs that start at odd rows.
    down = grey[apart:], grey[:-apart]
    return sum(cv2.norm(a, b, cv2.NORM_L2SQR) / a.size for a, b in (across, down))


def _step(grey: np.ndarray) -> float:
    """Return the largest step between neighbouring rows that all parts of the rows have."""
    parts = min(_PARTS, grey.shape[1])
    length = grey.shape[1] // parts
    whole = np.ascontiguousarray(grey[:, : parts * length]).reshape(-1, length)
    sums = cv2.reduce(whole, 1, cv2.REDUCE_SUM, dtype=cv2.CV_32S).reshape(-1, parts)
    rows = np.ascontiguousarray(sums.T, np.float32)  # (part, row)
    steps = cv2.filter2D(rows, -1, _STEP)[:, 2:-1]  # without padding
    up = cv2.minMaxLoc(cv2.reduce(steps, 0, cv2.REDUCE_MIN))[1]
    down = -cv2.minMaxLoc(cv2.reduce(steps, 0, cv2.REDUCE_MAX))[0]
    return max(0.0, up, down) / length
