"""Stain normalisation: what a slide's stain is, and its tiles as if they were stained otherwise.

Two methods, each fitted on some pixels of a slide and then applied to any of its tiles:

- `macenko` (Macenko et al. 2009, https://doi.org/10.1109/ISBI.2009.5193250) finds the colours of
  haematoxylin and eosin, and exchanges them for those of the target.
- `reinhard` (Reinhard et al. 2001, https://doi.org/10.1109/38.946629) knows no stains: it gives
  the stained pixels the target's mean and spread of colour.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import cv2
import numpy as np

METHODS = ("macenko", "reinhard")

# Light that no tissue dims, the optical density (natural logarithm) below which a pixel is
# transparent, and the percentile for extremes: Io, beta and alpha of the published code,
# https://github.com/mitkovetta/staining-normalization. It also adds one to each grey level, so
# that black has a logarithm.
LAMP = 240
TRANSPARENT = 0.15
EXTREME = 1
# One pixel in a hundred is an extreme; ten of them are the least to trust.
MIN_STAINED = 1000
# Degrees between two stains. A camera's noise of ±4 grey levels spreads a single stain over 6°;
# haematoxylin and eosin of 371 real lung tiles lie 7° to 44° apart, the published pair 22°.
MIN_ANGLE = 6.0
# In natural logarithms, both: a strength so low is no stain, a deviation so low is less than what
# rounding to whole grey levels does to a single colour.
MIN_STRENGTH = 1e-2
MIN_DEVIATION = 1e-3

_SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "macenko": {"vectors": (2, 3), "strengths": (2,)},
    "reinhard": {"mean": (3,), "deviation": (3,)},
}
_DENSITY = -np.log((np.arange(256) + 1) / LAMP)
# From RGB to responses of cones, and from their logarithms to l, alpha, beta: Reinhard 2001,
# section "Decorrelated color space", after Ruderman 1998 (https://doi.org/10.1364/JOSAA.15.002036).
_LMS = np.array([[0.3811, 0.5783, 0.0402], [0.1967, 0.7244, 0.0782], [0.0241, 0.1288, 0.8444]])
_LAB = np.array([[1, 1, 1], [1, 1, -2], [1, -1, 0]]) / np.sqrt([[3], [6], [2]])

# Tables by grey level, and maps of colours with the one that is added to grey levels.
_GREY = np.arange(256, dtype=np.float32)
_STAIN = _DENSITY.clip(0).astype(np.float32)
_BRIGHTER = (_GREY - (LAMP - 1)).clip(0) - 1
_RGB_TO_LMS = np.column_stack([_LMS, _LMS.sum(axis=1)]).astype(np.float32)
_LMS_TO_RGB = np.column_stack([np.linalg.inv(_LMS), [-1, -1, -1]]).astype(np.float32)
# The share of Reinhard's change that a pixel gets, by its darkest channel. The change moves all
# colours alike and would tint glass, which has no part in the statistics. A share that grows
# smoothly, with no step or bend, leaves no edge in the picture as a mask of tissue would. It goes
# by density, not by saturation, because dark nuclei can be nearly grey.
_SHARE = (_DENSITY / TRANSPARENT).clip(0, 1)
_SHARE = (_SHARE**2 * (3 - 2 * _SHARE)).astype(np.float32)
# Pixels that are changed at a time: their numbers in between stay in the processor's cache. More
# are computed than are wanted, because OpenCV computes the last pixels of an array by other
# instructions, whose last digits differ: a pixel's bytes would depend on where in the tile it is.
_BLOCK = 2**13
_SPARE = 64


class StainError(Exception):
    """The pixels do not tell a stain; the message is the reason (one line) that is recorded."""


@dataclass(frozen=True)
class Stain:
    """What a method learnt of some pixels: plain numbers, which JSON keeps exactly.

    Attributes:
        method: one of `METHODS`.
        values: for macenko `vectors`, the optical densities (natural logarithm) of haematoxylin
            and eosin in red, green and blue, each of unit length, and `strengths`, the 99th
            percentile of the concentration of each; for reinhard `mean` and `deviation` of
            l, alpha and beta (natural logarithms of grey levels).

    Raises:
        ValueError: the numbers are not a stain's; the message says why.
    """

    method: str
    values: Mapping[str, list[Any]]

    def __post_init__(self) -> None:
        fault = _fault(self.method, self.values)
        if fault:
            raise ValueError(fault)

    def as_dict(self) -> dict[str, Any]:
        """Return the stain as JSON keeps it."""
        return {"method": self.method, **self.values}

    @classmethod
    def from_dict(cls, found: Any) -> "Stain":
        """Return the stain that `as_dict` described.

        Raises:
            ValueError: it describes none; the message says what is wrong.
        """
        if not isinstance(found, Mapping) or "method" not in found:
            raise ValueError(f"a stain is a mapping with a method, not {found!r}")
        return cls(found["method"], {key: found[key] for key in found if key != "method"})


def fit(method: str, pixels: np.ndarray) -> Stain:
    """Learn a stain. The order of the pixels does not matter, nor how much glass is among them.

    Args:
        method: one of `METHODS`.
        pixels: RGB, (n, 3) uint8, of tissue and perhaps of glass; pen and dirt mislead.

    Raises:
        StainError: there is too little stain, or (macenko) one only, or (reinhard) one colour.
        ValueError: there is no such method, or the array is another.
    """
    if method not in METHODS:
        raise ValueError(f"there is no method {method!r}; there are {' and '.join(METHODS)}")
    if pixels.ndim != 2 or pixels.shape[1] != 3 or pixels.dtype != np.uint8:
        raise ValueError(f"pixels are (n, 3) uint8, not {pixels.shape} {pixels.dtype}")
    found = _fit_macenko(pixels) if method == "macenko" else _fit_reinhard(pixels)
    # The order of a sum moves its last digits. What is recorded does not show them.
    values = {key: np.round(value, 9).tolist() for key, value in found.items()}
    fault = _fault(method, values)
    if fault:
        raise StainError(fault)
    return Stain(method, values)


class Normaliser:
    """Shows tiles of one stain as if they had another.

    Every pixel is changed by itself: the result depends neither on its neighbours nor on the
    number of threads. Where all its channels are 239 or brighter, as on most glass, it stays
    exactly as it is. Darker glass:

    - macenko takes it for faint stain. As in the published code, a pixel becomes a mixture of
      the two stains: a tint of the glass is lost, and so is any colour that neither stain has.
      Black stays dark.
    - reinhard changes it the more, the darker it is, and wholly where the darkest channel is
      below 206, an optical density of 0.15. Black stays dark.

    Args:
        source: the stain of the slide that the tiles are of.
        target: the stain that they are to have, by the same method.
    """

    def __init__(self, source: Stain, target: Stain) -> None:
        if source.method != target.method:
            raise ValueError(f"a {source.method} stain cannot become a {target.method} stain")
        change: Callable[[np.ndarray], np.ndarray]
        if source.method == "macenko":
            change = partial(_change_stains, *_stain_maps(source, target))
        else:
            change = partial(_change_colours, _colour_map(source, target))
        self._change = change

    def __call__(self, tile: np.ndarray) -> np.ndarray:
        """Return the tile, (height, width, 3) uint8, as the target would have it; the same shape.

        Raises:
            ValueError: the array is another.
        """
        if tile.ndim != 3 or tile.shape[2] != 3 or tile.dtype != np.uint8:
            raise ValueError(f"a tile is (height, width, 3) uint8, not {tile.shape} {tile.dtype}")
        n = tile.shape[0] * tile.shape[1]
        pixels = np.zeros((n + 2 * _SPARE - n % _SPARE, 3), np.uint8)
        pixels[:n] = tile.reshape(-1, 3)
        normalised = np.empty((n, 3), np.uint8)
        for start in range(0, n, _BLOCK):
            block = self._change(pixels[None, start : start + _BLOCK + _SPARE])
            normalised[start : start + _BLOCK] = block[0, : min(_BLOCK, n - start)]
        return normalised.reshape(tile.shape)


def _fault(method: str, values: Mapping[str, Any]) -> str | None:
    """Return why these are not the numbers of a stain, or None where they are."""
    if method not in METHODS:
        return f"there is no method {method!r}; there are {' and '.join(METHODS)}"
    shapes = _SHAPES[method]
    if set(values) != set(shapes):
        return f"a {method} stain has {' and '.join(shapes)}, not {list(values)}"
    numbers = {}
    for key, shape in shapes.items():
        found = np.array(values[key], object)
        # No comparison holds for what is not a number (NaN).
        plain = all(type(number) in (int, float) and abs(number) < 1e6 for number in found.flat)
        if found.shape != shape or not plain:
            sides = " × ".join(map(str, shape))
            return f"{key} of a {method} stain is {sides} finite numbers, not {values[key]!r}"
        numbers[key] = found.astype(float)
    if method == "reinhard":
        if numbers["deviation"].min() >= MIN_DEVIATION:
            return None
        return (
            f"it has one colour only: deviations of l, alpha and beta are {values['deviation']}, "
            f"where {MIN_DEVIATION:g} is the least"
        )
    vectors, strengths = numbers["vectors"], numbers["strengths"]
    if abs(np.linalg.norm(vectors, axis=1) - 1).max() > 1e-3 or vectors.min() < 0:
        return f"vectors of stains have unit length and nothing below zero, not {vectors.tolist()}"
    angle = np.degrees(np.arccos(min(1.0, vectors[0] @ vectors[1])))
    if angle < MIN_ANGLE:
        return (
            f"it has one stain only: its two stain vectors are {angle:.1f}° apart, where "
            f"{MIN_ANGLE:g}° are the least"
        )
    if vectors[0, 0] < vectors[1, 0]:
        return f"haematoxylin, which absorbs more red, comes first, not {vectors.tolist()}"
    if strengths.min() < MIN_STRENGTH:
        return f"strengths of stains are at least {MIN_STRENGTH:g}, not {strengths.tolist()}"
    return None


def _check_stained(count: int, n: int, channels: str) -> None:
    if count < MIN_STAINED:
        raise StainError(
            f"it has too little stain: {count:,} of {n:,} pixels have an optical density of "
            f"{TRANSPARENT:g} or more in {channels}, where {MIN_STAINED:,} are the least"
        )


def _fit_macenko(pixels: np.ndarray) -> dict[str, np.ndarray]:
    """Return vectors (2, 3) and strengths (2,), as the published code finds them.

    Only strengths are of pixels with any stain. The code takes all pixels: glass weakens them.
    """
    density = _DENSITY[pixels]
    density = density[(density >= TRANSPARENT).any(axis=1)]
    dark = density[(density >= TRANSPARENT).all(axis=1)]
    _check_stained(len(dark), len(pixels), "all channels")
    mean = dark.mean(axis=0)
    plane = np.linalg.eigh(np.cov(dark.T))[1][:, 1:]
    # Angles count from the mean colour: an eigenvector may point either way, and angles from it
    # may wrap round.
    middle = plane @ (plane.T @ mean)
    if np.linalg.norm(middle) < np.linalg.norm(mean) / 2:
        raise StainError("its colours are no mixtures of two stains")
    middle /= np.linalg.norm(middle)
    side = plane @ (np.array([[0, -1], [1, 0]]) @ (plane.T @ middle))
    angles = np.arctan2(dark @ side, dark @ middle)
    extremes = np.percentile(angles, [EXTREME, 100 - EXTREME])[:, None]
    # No stain gives light, but noise may seem to.
    vectors = (np.cos(extremes) * middle + np.sin(extremes) * side).clip(0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    # The published rule: haematoxylin absorbs more red than eosin.
    vectors = vectors[np.argsort(-vectors[:, 0])]
    concentrations = density @ np.linalg.pinv(vectors)
    strengths = np.percentile(concentrations, 100 - EXTREME, axis=0)
    return {"vectors": vectors, "strengths": strengths}


def _fit_reinhard(pixels: np.ndarray) -> dict[str, np.ndarray]:
    """Return mean (3,) and deviation (3,) of l, alpha, beta of the pixels that change wholly."""
    stained = pixels[(_DENSITY[pixels] >= TRANSPARENT).any(axis=1)]
    _check_stained(len(stained), len(pixels), "any channel")
    colours = np.log((stained + 1.0) @ _LMS.T) @ _LAB.T
    return {"mean": colours.mean(axis=0), "deviation": colours.std(axis=0)}


def _stain_maps(source: Stain, target: Stain) -> tuple[np.ndarray, np.ndarray]:
    """Return the maps from densities to the target's amounts, and on to logarithms of levels.

    They are (3, 3) and (3, 4) float32; there is a third amount, always none, because maps between
    three channels are several times faster than others.
    """
    gain = np.array(target.values["strengths"]) / source.values["strengths"]
    unmix, mix = np.zeros((3, 3), np.float32), np.zeros((3, 4), np.float32)
    unmix[:2] = gain[:, None] * np.linalg.pinv(np.transpose(source.values["vectors"]))
    mix[:, :2] = -np.transpose(target.values["vectors"])
    mix[:, 3] = np.log(LAMP)
    return unmix, mix


def _change_stains(unmix: np.ndarray, mix: np.ndarray, tile: np.ndarray) -> np.ndarray:
    amounts = cv2.transform(cv2.LUT(tile, _STAIN), unmix)
    # No pixel has less than no stain. The published code lets it, and such pixels glow.
    levels = cv2.transform(np.maximum(amounts, 0, out=amounts), mix)
    # What is brighter than the lamp is no stain either, and is added as it was.
    return cv2.add(cv2.exp(levels, dst=levels), cv2.LUT(tile, _BRIGHTER), dtype=cv2.CV_8U)


def _colour_map(source: Stain, target: Stain) -> np.ndarray:
    """Return the map between logarithms of cone responses: (3, 4) float32.

    It is that of Reinhard 2001, section "Statistics and color correction".
    """
    gain = np.array(target.values["deviation"]) / source.values["deviation"]
    shift = np.array(target.values["mean"]) - gain * source.values["mean"]
    back = np.linalg.inv(_LAB)
    return np.column_stack([(back * gain) @ _LAB, back @ shift]).astype(np.float32)


def _change_colours(change: np.ndarray, tile: np.ndarray) -> np.ndarray:
    grey = cv2.LUT(tile, _GREY)
    cones = cv2.transform(grey, _RGB_TO_LMS)
    cones = cv2.transform(cv2.log(cones, dst=cones), change).reshape(len(tile), -1)
    # Far beyond white already; unbounded, infinities would cancel to what is no number.
    cv2.exp(cv2.min(cones, np.log(2**16), dst=cones), dst=cones)
    changed = cv2.transform(cones.reshape(tile.shape), _LMS_TO_RGB).clip(0, 255)
    red, green, blue = cv2.split(tile)
    share = cv2.LUT(cv2.min(cv2.min(red, green), blue), _SHARE)
    step = cv2.multiply(cv2.subtract(changed, grey), cv2.merge([share] * 3))
    return cv2.add(grey, step, dtype=cv2.CV_8U)


# What slides are to look like where nothing else is wanted. Macenko: HERef and maxCRef of the
# published code (above). Reinhard: a region of the breast cancer slide TCGA-A2-A3XS-DX1 (Amgad et
# al. 2019, https://doi.org/10.1093/bioinformatics/btz083), as HistomicsTK measured it,
# https://github.com/DigitalSlideArchive/HistomicsTK (tests/test_color_normalization.py).
REFERENCE = {
    found["method"]: Stain.from_dict(found)
    for found in (
        {
            "method": "macenko",
            "vectors": [[0.5626, 0.7201, 0.4062], [0.2159, 0.8012, 0.5581]],
            "strengths": [1.9705, 1.0308],
        },
        {
            "method": "reinhard",
            "mean": [8.74108109, -0.12440419, 0.0444982],
            "deviation": [0.6135447, 0.10989545, 0.0286032],
        },
    )
}
