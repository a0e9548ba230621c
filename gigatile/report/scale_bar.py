"""Scale bars of slides and slices."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class ScaleBar:
    """A bar of a round length; `share`: its fraction of the width of the image."""

    share: float
    text: str


def scale_bar(width: int, mpp: float) -> ScaleBar:
    """Return the longest bar of 1, 2 or 5 · 10^k µm that is at most a quarter of the width.

    Args:
        width: of the image in pixels.
        mpp: micrometres per pixel.
    """
    quarter = width * mpp / 4
    power = 10.0 ** math.floor(math.log10(quarter))
    length = max(step * power for step in (1, 2, 5) if step * power <= quarter * (1 + 1e-9))
    text = f"{length / 1000:g} mm" if length >= 1000 else f"{length:g} µm"
    return ScaleBar(length / mpp / width, text)
