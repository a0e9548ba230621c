"""Faults of a slide in numbers: pen and folds on its overview, focus and light on each tile.

A measure judges nothing: the thresholds are settings. All of it is for brightfield slides.
"""

from typing import NamedTuple

import cv2
import numpy as np

from gigatile.slides.tissue import extremes

INKS = ("red", "green", "blue", "black")

# Haematoxylin, eosin and blood together keep to hues of about 240-349 degrees, and ink is told by
# a hue outside of them. Glass can be tinted, but is less saturated, and brighter, than ink.
# Each box: hue in degrees, saturation and brightness (HSV) 0-255, all from and to.
_COLOURS = {
    "red": (((0, 25), (100, 255), (50, 242)), ((350, 360), (100, 255), (50, 242))),
    "green": (((70, 189), (35, 255), (40, 230)),),
    # Deep blue over tissue has the hue of haematoxylin, but is darker than nuclei on an overview.
    "blue": (((190, 236), (100, 255), (40, 230)), ((237, 250), (128, 255), (40, 130))),
}
# Black ink takes all colours alike. Nuclei and folds as dark as it are still violet: the highest
# brightness of black, and the most by which one of its colours may exceed another.
_BLACK = 110
_COLOURLESS = 24

# Tukey's fence, in spreads between the quartiles; and the smallest such spread, in grey levels, for
# on evenly stained tissue a little dirt would else lie beyond it.
_FENCE = 1.5
_LEAST_SPREAD = 40
# Folds are wider than nuclei: pixels of the overview over which colours are averaged.
_SMOOTH = 5

# In how many parts a row must show a step before the step counts as a stripe.
_PARTS = 16
# A step less the mean of those before and after it, on the brightness of four rows.
_STEP = np.array([[0.5, -1.5, 1.5, -0.5]], np.float32)
# Grey levels beyond which the scanner's scale has ended, or nearly so.
_WHITE = 250
_DARK = 5
# Mean squared difference of neighbours that noise makes on a picture of nothing, grey levels²: it
# keeps noise on empty glass from counting as fine detail.
_GRAIN = 20.0


class Pixels(NamedTuple):
    """What the full-resolution pixels of a tile, as grey levels, say of its quality.

    Attributes:
        sharpness: how much of the differences between neighbouring pixels is fine detail: 0 where
            brightness changes smoothly, as out of focus; 1 where each pixel is by itself. The
            energy of second differences along x and y over three times that of first differences
            ("modified Laplacian" of Nayar and Nakajima 1994 and "energy of gradient", two focus
            measures in Pertuz 2013). Their ratio hardly depends on the strength of the stain.
        contrast: standard deviation, in grey levels; near 0 where all pixels look alike.
        clipped: share of pixels, 0-1, so bright or so dark that the scanner lost their detail.
        stripes: the highest step, in grey levels, from one row or column of pixels to the next
            that each sixteenth of it shows; as tissue changes over several pixels and a stripe
            from one to the next, a step counts less the mean of the steps before and after it.
    """

    sharpness: float
    contrast: float
    clipped: float
    stripes: float


def measure(tile: np.ndarray) -> Pixels:
    """Measure the pixels of a tile: (height, width, 3) uint8 RGB, 16 px or more each way."""
    grey = cv2.cvtColor(tile, cv2.COLOR_RGB2GRAY)
    near, far = _difference(grey, 1), _difference(grey, 2)
    half = grey[::2]  # enough wherever a mean is taken over rows, in half the time
    kept = cv2.countNonZero(cv2.inRange(half, _DARK + 1, _WHITE - 1))
    return Pixels(
        # Of neighbours a, b, c, (2b - a - c)² = 2(b - a)² + 2(c - b)² - (c - a)²: the energy of
        # second differences comes without a filter. In pure noise far is near, hence the 3.
        sharpness=max(0.0, 4 * near - far) / (3 * (near + _GRAIN)),
        contrast=float(cv2.meanStdDev(half)[1][0, 0]),
        clipped=1 - kept / half.size,
        stripes=max(_step(grey), _step(cv2.transpose(half))),
    )


def ink_masks(overview: np.ndarray) -> dict[str, np.ndarray]:
    """Find pen marks by the colour of the ink.

    Red, green and blue ink have a hue that stained tissue has not, and are more saturated and
    darker than glass; black ink is dark and has no colour. A black frame, where the scanner did not
    look, counts as black ink.

    Args:
        overview: RGB pixels, (height, width, 3) uint8.

    Returns:
        for each of `INKS`, (height, width) bool, true on that ink; no pixel is of two inks.
    """
    hsv = cv2.cvtColor(overview, cv2.COLOR_RGB2HSV)
    masks = {}
    brightest, darkest = extremes(overview)
    black = (brightest <= _BLACK) & (brightest - darkest <= _COLOURLESS)
    for ink, boxes in _COLOURS.items():
        found = np.zeros_like(black)
        for hue, *bounds in boxes:
            halved = hue[0] // 2, hue[1] // 2  # OpenCV's hue has steps of 2 degrees
            low, high = zip(halved, *bounds, strict=True)
            found |= cv2.inRange(hsv, low, high).astype(bool)
        masks[ink] = found
        black &= ~found
    return masks | {"black": black}


def fold_mask(overview: np.ndarray, tissue: np.ndarray) -> np.ndarray:
    """Find folds: tissue that is far darker and more saturated than the slide's tissue is.

    Two layers take light away twice, so a fold gains saturation and loses intensity. Their
    difference (Palokangas 2007; Kothari 2013) is a fold's where it lies beyond Tukey's upper fence
    (1977) of the slide's own tissue: 1.5 spreads between the quartiles above the upper quartile.

    Args:
        overview: RGB pixels, (height, width, 3) uint8.
        tissue: (height, width) bool, true on tissue. Pen marks should be left out: they are dark
            and saturated too.

    Returns:
        (height, width) bool, true on folds; all of them within `tissue`.
    """
    if not tissue.any():
        return np.zeros_like(tissue)
    smooth = cv2.blur(overview, (_SMOOTH, _SMOOTH))
    saturation = cv2.extractChannel(cv2.cvtColor(smooth, cv2.COLOR_RGB2HSV), 1)
    red, green, blue = cv2.split(smooth)
    light = cv2.add(cv2.add(red, green, dtype=cv2.CV_16S), blue, dtype=cv2.CV_16S)
    # In thirds of a grey level, so that whole numbers of 2 bytes hold it.
    depth = 3 * saturation.astype(np.int16) - light
    lower, upper = np.percentile(depth[tissue], (25, 75))
    return tissue & (depth > upper + _FENCE * max(upper - lower, 3 * _LEAST_SPREAD))


def _difference(grey: np.ndarray, apart: int) -> float:
    """Return the mean squared difference of pixels `apart` px, across plus down."""
    across = grey[::2, apart:], grey[::2, :-apart]
    # All rows here: in JPEG, pairs that begin at an even row are unlike those at an odd one.
    down = grey[apart:], grey[:-apart]
    return sum(cv2.norm(a, b, cv2.NORM_L2SQR) / a.size for a, b in (across, down))


def _step(grey: np.ndarray) -> float:
    """Return the highest step from a row to the next that all parts of it show, grey levels."""
    parts = min(_PARTS, grey.shape[1])
    length = grey.shape[1] // parts
    whole = np.ascontiguousarray(grey[:, : parts * length]).reshape(-1, length)
    sums = cv2.reduce(whole, 1, cv2.REDUCE_SUM, dtype=cv2.CV_32S).reshape(-1, parts)
    rows = np.ascontiguousarray(sums.T, np.float32)  # (part, row)
    steps = cv2.filter2D(rows, -1, _STEP)[:, 2:-1]  # where all four rows are the picture's
    up = cv2.minMaxLoc(cv2.reduce(steps, 0, cv2.REDUCE_MIN))[1]
    down = -cv2.minMaxLoc(cv2.reduce(steps, 0, cv2.REDUCE_MAX))[0]
    return max(0.0, up, down) / length
