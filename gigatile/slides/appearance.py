"""How the pixels of a slide or image look, in a few figures that can be compared with others."""

import cv2
import numpy as np

from gigatile.slides.quality import PixelMeasures

# Decimals: more would depend on the processor.
_DECIMALS = 4


def colour_of(pixels: np.ndarray) -> np.ndarray:
    """Return the mean red, green and blue of (height, width, 3) uint8 RGB: (3,) float64."""
    return np.array(cv2.mean(pixels)[:3])


class AppearanceSum:
    """Adds up how tiles or regions look."""

    def __init__(self) -> None:
        self._sums, self._weight = np.zeros(5), 0.0

    def add(self, colour: np.ndarray, measures: PixelMeasures, weight: float = 1) -> None:
        """Add a tile or region.

        Args:
            colour: see `colour_of`; of the pixels that the model gets.
            measures: of its pixels.
            weight: relative to that of others.
        """
        self._sums += weight * np.array([*colour, measures.contrast, measures.sharpness])
        self._weight += weight

    def figures(self) -> dict[str, float]:
        """Return the means, from 0 to 255, of sharpness from 0 to 1; empty if nothing was added."""
        if not self._weight:
            return {}
        means = (self._sums / self._weight).round(_DECIMALS).tolist()
        return dict(zip(("red", "green", "blue", "contrast", "sharpness"), means, strict=True))
