"""Stain normalisation of Reinhard et al. 2001, https://doi.org/10.1109/38.946629.

Does not separate stains: gives the stained pixels the target's mean and standard deviation of
colour. A pixel is transformed partly, increasing with darkness, and completely if its darkest
channel is below 206, an optical density of 0.15. Black stays dark.
"""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import cv2
import numpy as np

from gigatile.slides.stains.method import (
    DENSITY,
    TRANSPARENT,
    StainMethod,
    Transform,
    check_stained,
)

# In natural logarithms. Rounding a single colour to whole grey levels gives a lower deviation.
MIN_DEVIATION = 1e-3

# From RGB to cone responses (LMS), and from their logarithms to l, alpha, beta: Reinhard 2001,
# section "Decorrelated color space", after Ruderman 1998 (https://doi.org/10.1364/JOSAA.15.002036).
_LMS = np.array([[0.3811, 0.5783, 0.0402], [0.1967, 0.7244, 0.0782], [0.0241, 0.1288, 0.8444]])
_LAB = np.array([[1, 1, 1], [1, 1, -2], [1, -1, 0]]) / np.sqrt([[3], [6], [2]])
_GREY = np.arange(256, dtype=np.float32)
# Colour matrices; the last column accounts for the one that is added to grey levels.
_RGB_TO_LMS = np.column_stack([_LMS, _LMS.sum(axis=1)]).astype(np.float32)
_LMS_TO_RGB = np.column_stack([np.linalg.inv(_LMS), [-1, -1, -1]]).astype(np.float32)
# The weight of Reinhard's transform, by a pixel's darkest channel. The transform shifts all colours
# and would tint glass, which the statistics exclude. A smooth weight, unlike a tissue mask, creates
# no edges. It depends on density, not on saturation, because dark nuclei can be nearly grey.
_WEIGHT = (DENSITY / TRANSPARENT).clip(0, 1)
_WEIGHT = (_WEIGHT**2 * (3 - 2 * _WEIGHT)).astype(np.float32)


class Reinhard(StainMethod):
    """The method. The parameters of a stain: mean and deviation of l, alpha and beta.

    They are in natural logarithms of grey levels.
    """

    shapes: ClassVar = {"mean": (3,), "deviation": (3,)}
    # A region of the breast cancer slide TCGA-A2-A3XS-DX1 (Amgad et al. 2019,
    # https://doi.org/10.1093/bioinformatics/btz083), as measured by HistomicsTK,
    # https://github.com/DigitalSlideArchive/HistomicsTK (tests/test_color_normalization.py).
    reference: ClassVar = {
        "mean": [8.74108109, -0.12440419, 0.0444982],
        "deviation": [0.6135447, 0.10989545, 0.0286032],
    }

    def fit(self, pixels: np.ndarray) -> dict[str, np.ndarray]:
        """Return mean (3,) and deviation (3,) of l, alpha, beta of fully transformed pixels."""
        stained = pixels[(DENSITY[pixels] >= TRANSPARENT).any(axis=1)]
        check_stained(len(stained), len(pixels), "any channel")
        colours = np.log((stained + 1.0) @ _LMS.T) @ _LAB.T
        return {"mean": colours.mean(axis=0), "deviation": colours.std(axis=0)}

    def find_fault(self, values: Mapping[str, np.ndarray]) -> str | None:
        """See `StainMethod`."""
        if values["deviation"].min() >= MIN_DEVIATION:
            return None
        return (
            "it has only one colour: deviations of l, alpha and beta are "
            f"{values['deviation'].tolist()}, but must be at least {MIN_DEVIATION:g}"
        )

    def transform(
        self, source: Mapping[str, np.ndarray], target: Mapping[str, np.ndarray]
    ) -> Transform:
        """See `StainMethod`."""
        return partial(_transform, _matrix(source, target))


def _matrix(source: Mapping[str, np.ndarray], target: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the matrix between logarithms of cone responses: (3, 4) float32.

    Reinhard 2001, section "Statistics and color correction".
    """
    gain = target["deviation"] / source["deviation"]
    shift = target["mean"] - gain * source["mean"]
    back = np.linalg.inv(_LAB)
    return np.column_stack([(back * gain) @ _LAB, back @ shift]).astype(np.float32)


def _transform(matrix: np.ndarray, tile: np.ndarray) -> np.ndarray:
    grey = cv2.LUT(tile, _GREY)
    cones = cv2.transform(grey, _RGB_TO_LMS)
    cones = cv2.transform(cv2.log(cones, dst=cones), matrix).reshape(len(tile), -1)
    # The limit is far beyond white; without it, infinities would cancel to NaN.
    cv2.exp(cv2.min(cones, np.log(2**16), dst=cones), dst=cones)
    transformed = cv2.transform(cones.reshape(tile.shape), _LMS_TO_RGB).clip(0, 255)
    red, green, blue = cv2.split(tile)
    weight = cv2.LUT(cv2.min(cv2.min(red, green), blue), _WEIGHT)
    step = cv2.multiply(cv2.subtract(transformed, grey), cv2.merge([weight] * 3))
    return cv2.add(grey, step, dtype=cv2.CV_8U)
