"""Stain normalisation: estimate the stain of a slide, and normalise its tiles to a target stain.

Two methods, each fitted to some pixels of a slide and then applied to any of its tiles:

- `macenko` (Macenko et al. 2009, https://doi.org/10.1109/ISBI.2009.5193250) estimates the colours
  of haematoxylin and eosin, and replaces them by those of the target.
- `reinhard` (Reinhard et al. 2001, https://doi.org/10.1109/38.946629) does not separate stains: it
  gives the stained pixels the target's mean and standard deviation of colour.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cv2
import numpy as np

METHODS = ("macenko", "reinhard")

# The transmitted intensity of an empty slide, the optical density (natural logarithm) below which a
# pixel is transparent, and the percentile for extremes: Io, beta and alpha of the published code,
# https://github.com/mitkovetta/staining-normalization. It also adds one to each grey level, so that
# the logarithm of black is defined.
EMPTY_INTENSITY = 240
TRANSPARENT = 0.15
EXTREME = 1
# One pixel in a hundred is extreme, so this many pixels have ten extreme ones.
MIN_STAINED = 1000
# Degrees between two stains. Camera noise of ±4 grey levels spreads a single stain over 6°. In 371
# real lung tiles, haematoxylin and eosin are 7° to 44° apart; the published pair is 22° apart.
MIN_ANGLE = 6.0
# Both in natural logarithms. A lower strength is not a stain; rounding a single colour to whole
# grey levels gives a lower deviation.
MIN_STRENGTH = 1e-2
MIN_DEVIATION = 1e-3

_SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "macenko": {"vectors": (2, 3), "strengths": (2,)},
    "reinhard": {"mean": (3,), "deviation": (3,)},
}
_DENSITY = -np.log((np.arange(256) + 1) / EMPTY_INTENSITY)
# From RGB to cone responses (LMS), and from their logarithms to l, alpha, beta: Reinhard 2001,
# section "Decorrelated color space", after Ruderman 1998 (https://doi.org/10.1364/JOSAA.15.002036).
_LMS = np.array([[0.3811, 0.5783, 0.0402], [0.1967, 0.7244, 0.0782], [0.0241, 0.1288, 0.8444]])
_LAB = np.array([[1, 1, 1], [1, 1, -2], [1, -1, 0]]) / np.sqrt([[3], [6], [2]])

# Look-up tables by grey level; and colour matrices, with a last column for the 1 that is added to
# grey levels.
_GREY = np.arange(256, dtype=np.float32)
_STAIN = _DENSITY.clip(0).astype(np.float32)
_BRIGHTER = (_GREY - (EMPTY_INTENSITY - 1)).clip(0) - 1
_RGB_TO_LMS = np.column_stack([_LMS, _LMS.sum(axis=1)]).astype(np.float32)
_LMS_TO_RGB = np.column_stack([np.linalg.inv(_LMS), [-1, -1, -1]]).astype(np.float32)
# The weight of Reinhard's transform, by a pixel's darkest channel. The transform shifts all colours
# and would tint glass, which the statistics exclude. A smooth weight, unlike a tissue mask, creates
# no edges. It depends on density, not on saturation, because dark nuclei can be nearly grey.
_WEIGHT = (_DENSITY / TRANSPARENT).clip(0, 1)
_WEIGHT = (_WEIGHT**2 * (3 - 2 * _WEIGHT)).astype(np.float32)
# Pixels per block, so that intermediate results stay in the processor's cache; and the padding of
# a block. OpenCV computes the last pixels of an array with other instructions, and their last
# digits differ: without padding, a pixel's result would depend on its position in the tile.
_BLOCK = 2**13
_PADDING = 64


StainValues = Mapping[str, Sequence[float | list[float]]]


class StainError(Exception):
    """The stain cannot be estimated from the pixels; the message is the reason, in one line."""


@dataclass(frozen=True)
class Stain:
    """The parameters of a stain; JSON represents them exactly.

    Attributes:
        method: one of `METHODS`.
        values: for macenko `vectors`, the optical densities (natural logarithm) of haematoxylin
            and eosin in red, green and blue, each of unit length, and `strengths`, the 99th
            percentile of the concentration of each; for reinhard `mean` and `deviation` of
            l, alpha and beta (natural logarithms of grey levels).

    Raises:
        ValueError: these are not the parameters of a stain.
    """

    method: str
    values: StainValues

    def __post_init__(self) -> None:
        fault = _fault(self.method, self.values)
        if fault:
            raise ValueError(fault)

    def as_dict(self) -> dict[str, object]:
        """Return the method and the parameters, as JSON has them."""
        return {"method": self.method, **self.values}

    @classmethod
    def from_dict(cls, fields: Any) -> "Stain":
        """Return the stain from the result of `as_dict`.

        Raises:
            ValueError: these are not the parameters of a stain.
        """
        if not isinstance(fields, Mapping) or "method" not in fields:
            raise ValueError(f"a stain must be a mapping with a method, found {fields!r}")
        return cls(fields["method"], {key: fields[key] for key in fields if key != "method"})


def fit(method: str, pixels: np.ndarray) -> Stain:
    """Estimate a stain. The result does not depend on the order of pixels or the amount of glass.

    Args:
        method: one of `METHODS`.
        pixels: RGB, (n, 3) uint8, of tissue and possibly glass, without pen and dirt.

    Raises:
        StainError: too little stain, or only one stain (macenko) or colour (reinhard).
        ValueError: an unknown method, or a wrong shape or type of the array.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; must be {' or '.join(METHODS)}")
    if pixels.ndim != 2 or pixels.shape[1] != 3 or pixels.dtype != np.uint8:
        raise ValueError(f"pixels must be (n, 3) uint8, found {pixels.shape} {pixels.dtype}")
    arrays = _fit_macenko(pixels) if method == "macenko" else _fit_reinhard(pixels)
    # The last digits depend on the order of summation, so they are not recorded.
    values = {key: np.round(array, 9).tolist() for key, array in arrays.items()}
    fault = _fault(method, values)
    if fault:
        raise StainError(fault)
    return Stain(method, values)


class Normaliser:
    """Normalises tiles from a source stain to a target stain.

    Each pixel is transformed independently of its neighbours and of the number of threads. A pixel
    stays unchanged if all its channels are 239 or brighter, as in most glass. For darker glass:

    - macenko treats it as faint stain. As in the published code, a pixel becomes a mixture of the
      two stains: a tint of the glass is lost, and so is any colour that neither stain has. Black
      stays dark.
    - reinhard transforms it partly, increasing with darkness, and completely if the darkest
      channel is below 206, an optical density of 0.15. Black stays dark.

    Args:
        source: the stain of the tiles' slide.
        target: the stain to normalise to, of the same method.
    """

    def __init__(self, source: Stain, target: Stain) -> None:
        if source.method != target.method:
            raise ValueError(f"cannot normalise a {source.method} stain to a {target.method} stain")
        transform: Callable[[np.ndarray], np.ndarray]
        if source.method == "macenko":
            transform = partial(_transform_stains, *_stain_matrices(source, target))
        else:
            transform = partial(_transform_colours, _colour_matrix(source, target))
        self._transform = transform

    def __call__(self, tile: np.ndarray) -> np.ndarray:
        """Return the normalised tile; both are (height, width, 3) uint8.

        Raises:
            ValueError: a wrong shape or type of the array.
        """
        if tile.ndim != 3 or tile.shape[2] != 3 or tile.dtype != np.uint8:
            raise ValueError(
                f"a tile must be (height, width, 3) uint8, found {tile.shape} {tile.dtype}"
            )
        n = tile.shape[0] * tile.shape[1]
        pixels = np.zeros((n + 2 * _PADDING - n % _PADDING, 3), np.uint8)
        pixels[:n] = tile.reshape(-1, 3)
        normalised = np.empty((n, 3), np.uint8)
        for start in range(0, n, _BLOCK):
            block = self._transform(pixels[None, start : start + _BLOCK + _PADDING])
            normalised[start : start + _BLOCK] = block[0, : min(_BLOCK, n - start)]
        return normalised.reshape(tile.shape)


def _fault(method: str, values: Mapping[str, object]) -> str | None:
    """Return why these are not the parameters of a stain; None if they are."""
    if method not in METHODS:
        return f"unknown method {method!r}; must be {' or '.join(METHODS)}"
    shapes = _SHAPES[method]
    if set(values) != set(shapes):
        return f"a {method} stain must have {' and '.join(shapes)}, found {list(values)}"
    numbers = {}
    for key, shape in shapes.items():
        array = np.array(values[key], object)
        # NaN fails the comparison.
        finite = all(type(number) in (int, float) and abs(number) < 1e6 for number in array.flat)
        if array.shape != shape or not finite:
            sides = "×".join(map(str, shape))
            return (
                f"{key} of a {method} stain must be {sides} finite numbers, found {values[key]!r}"
            )
        numbers[key] = array.astype(float)
    if method == "reinhard":
        if numbers["deviation"].min() >= MIN_DEVIATION:
            return None
        return (
            f"it has only one colour: deviations of l, alpha and beta are {values['deviation']}, "
            f"but must be at least {MIN_DEVIATION:g}"
        )
    vectors, strengths = numbers["vectors"], numbers["strengths"]
    if abs(np.linalg.norm(vectors, axis=1) - 1).max() > 1e-3 or vectors.min() < 0:
        return f"stain vectors must have unit length and no negative part, found {vectors.tolist()}"
    angle = np.degrees(np.arccos(min(1.0, vectors[0] @ vectors[1])))
    if angle < MIN_ANGLE:
        return (
            f"it has only one stain: its two stain vectors are {angle:.1f}° apart, but must be at "
            f"least {MIN_ANGLE:g}° apart"
        )
    if vectors[0, 0] < vectors[1, 0]:
        return f"haematoxylin, which absorbs more red, must come first, found {vectors.tolist()}"
    if strengths.min() < MIN_STRENGTH:
        return f"stain strengths must be at least {MIN_STRENGTH:g}, found {strengths.tolist()}"
    return None


def _check_stained(count: int, n: int, channels: str) -> None:
    if count < MIN_STAINED:
        raise StainError(
            f"it has too little stain: {count:,} of {n:,} pixels have an optical density of "
            f"{TRANSPARENT:g} or more in {channels}, but at least {MIN_STAINED:,} are needed"
        )


def _fit_macenko(pixels: np.ndarray) -> dict[str, np.ndarray]:
    """Return vectors (2, 3) and strengths (2,), as in the published code.

    One difference: strengths are computed from stained pixels. The published code includes glass,
    which lowers them.
    """
    density = _DENSITY[pixels]
    density = density[(density >= TRANSPARENT).any(axis=1)]
    dark = density[(density >= TRANSPARENT).all(axis=1)]
    _check_stained(len(dark), len(pixels), "all channels")
    mean = dark.mean(axis=0)
    plane = np.linalg.eigh(np.cov(dark.T))[1][:, 1:]
    # Angles are relative to the mean colour: the sign of an eigenvector is arbitrary, and angles
    # relative to it may wrap around.
    middle = plane @ (plane.T @ mean)
    if np.linalg.norm(middle) < np.linalg.norm(mean) / 2:
        raise StainError("its colours are not mixtures of two stains")
    middle /= np.linalg.norm(middle)
    side = plane @ (np.array([[0, -1], [1, 0]]) @ (plane.T @ middle))
    angles = np.arctan2(dark @ side, dark @ middle)
    extremes = np.percentile(angles, [EXTREME, 100 - EXTREME])[:, None]
    # Stains only absorb; noise can make components negative.
    vectors = (np.cos(extremes) * middle + np.sin(extremes) * side).clip(0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    # The published rule: haematoxylin absorbs more red than eosin.
    vectors = vectors[np.argsort(-vectors[:, 0])]
    concentrations = density @ np.linalg.pinv(vectors)
    strengths = np.percentile(concentrations, 100 - EXTREME, axis=0)
    return {"vectors": vectors, "strengths": strengths}


def _fit_reinhard(pixels: np.ndarray) -> dict[str, np.ndarray]:
    """Return mean (3,) and deviation (3,) of l, alpha, beta of fully transformed pixels."""
    stained = pixels[(_DENSITY[pixels] >= TRANSPARENT).any(axis=1)]
    _check_stained(len(stained), len(pixels), "any channel")
    colours = np.log((stained + 1.0) @ _LMS.T) @ _LAB.T
    return {"mean": colours.mean(axis=0), "deviation": colours.std(axis=0)}


def _stain_matrices(source: Stain, target: Stain) -> tuple[np.ndarray, np.ndarray]:
    """Return the matrices from densities to concentrations, and to logarithms of grey levels.

    They are (3, 3) and (3, 4) float32. The third concentration is always 0: OpenCV is several times
    faster with three channels.
    """
    gain = np.array(target.values["strengths"]) / source.values["strengths"]
    unmix, mix = np.zeros((3, 3), np.float32), np.zeros((3, 4), np.float32)
    unmix[:2] = gain[:, None] * np.linalg.pinv(np.transpose(source.values["vectors"]))
    mix[:, :2] = -np.transpose(target.values["vectors"])
    mix[:, 3] = np.log(EMPTY_INTENSITY)
    return unmix, mix


def _transform_stains(unmix: np.ndarray, mix: np.ndarray, tile: np.ndarray) -> np.ndarray:
    concentrations = cv2.transform(cv2.LUT(tile, _STAIN), unmix)
    # The published code allows negative concentrations, which give pixels that glow.
    levels = cv2.transform(np.maximum(concentrations, 0, out=concentrations), mix)
    # Intensity above that of an empty slide is kept.
    return cv2.add(cv2.exp(levels, dst=levels), cv2.LUT(tile, _BRIGHTER), dtype=cv2.CV_8U)


def _colour_matrix(source: Stain, target: Stain) -> np.ndarray:
    """Return the matrix between logarithms of cone responses: (3, 4) float32.

    Reinhard 2001, section "Statistics and color correction".
    """
    gain = np.array(target.values["deviation"]) / source.values["deviation"]
    shift = np.array(target.values["mean"]) - gain * source.values["mean"]
    back = np.linalg.inv(_LAB)
    return np.column_stack([(back * gain) @ _LAB, back @ shift]).astype(np.float32)


def _transform_colours(matrix: np.ndarray, tile: np.ndarray) -> np.ndarray:
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


# The default targets. Macenko: HERef and maxCRef of the published code (above). Reinhard: a region
# of the breast cancer slide TCGA-A2-A3XS-DX1 (Amgad et al. 2019,
# https://doi.org/10.1093/bioinformatics/btz083), as measured by HistomicsTK,
# https://github.com/DigitalSlideArchive/HistomicsTK (tests/test_color_normalization.py).
REFERENCE = {
    "macenko": Stain(
        "macenko",
        {
            "vectors": [[0.5626, 0.7201, 0.4062], [0.2159, 0.8012, 0.5581]],
            "strengths": [1.9705, 1.0308],
        },
    ),
    "reinhard": Stain(
        "reinhard",
        {
            "mean": [8.74108109, -0.12440419, 0.0444982],
            "deviation": [0.6135447, 0.10989545, 0.0286032],
        },
    ),
}
