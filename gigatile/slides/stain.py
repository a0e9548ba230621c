"""Stain normalisation: estimate the stain of a slide, and normalise its tiles to a target stain."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigatile.slides.stains.macenko import Macenko
from gigatile.slides.stains.method import Numbers, StainError, StainMethod
from gigatile.slides.stains.reinhard import Reinhard

# By the name that `tiles.stain` has.
METHODS: dict[str, StainMethod] = {"macenko": Macenko(), "reinhard": Reinhard()}

# Pixels per block, so that intermediate results stay in the processor's cache; and the padding of
# a block. OpenCV computes the last pixels of an array with other instructions, and their last
# digits differ: without padding, a pixel's result would depend on its position in the tile.
_BLOCK = 2**13
_PADDING = 64


@dataclass(frozen=True)
class Stain:
    """The parameters of a stain; JSON represents them exactly.

    Attributes:
        method: one of `METHODS`.
        values: its parameters, see the method's class.

    Raises:
        ValueError: these are not the parameters of a stain.
    """

    method: str
    values: Mapping[str, Numbers]

    def __post_init__(self) -> None:
        fault = _fault(self.method, self.values)
        if fault:
            raise ValueError(fault)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters as arrays, float64."""
        return {key: np.array(numbers, np.float64) for key, numbers in self.values.items()}

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
        StainError: the stain cannot be estimated, for example because there is too little.
        ValueError: an unknown method, or a wrong shape or type of the array.
    """
    if method not in tuple(METHODS):
        raise ValueError(f"unknown method {method!r}; must be {' or '.join(METHODS)}")
    if pixels.ndim != 2 or pixels.shape[1] != 3 or pixels.dtype != np.uint8:
        raise ValueError(f"pixels must be (n, 3) uint8, found {pixels.shape} {pixels.dtype}")
    # The last digits depend on the order of summation, so they are not recorded.
    values = {
        key: np.round(array, 9).tolist() for key, array in METHODS[method].fit(pixels).items()
    }
    fault = _fault(method, values)
    if fault:
        raise StainError(fault)
    return Stain(method, values)


class Normaliser:
    """Normalises tiles from a source stain to a target stain.

    Each pixel is transformed independently of its neighbours and of the number of threads. A pixel
    stays unchanged if all its channels are 239 or brighter, as in most glass. What happens to
    darker glass depends on the method.

    Args:
        source: the stain of the tiles' slide.
        target: the stain to normalise to, of the same method.
    """

    def __init__(self, source: Stain, target: Stain) -> None:
        if source.method != target.method:
            raise ValueError(f"cannot normalise a {source.method} stain to a {target.method} stain")
        self._transform = METHODS[source.method].transform(source.arrays, target.arrays)

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
    if method not in tuple(METHODS):
        return f"unknown method {method!r}; must be {' or '.join(METHODS)}"
    shapes = METHODS[method].shapes
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
    return METHODS[method].find_fault(numbers)


# The default targets.
REFERENCE = {name: Stain(name, method.reference) for name, method in METHODS.items()}
