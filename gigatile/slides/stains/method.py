"""The interface of a method of stain normalisation, and what the methods share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np

# The transmitted intensity of an empty slide, and the optical density (natural logarithm) below
# which a pixel is transparent: Io and beta of the published code of Macenko's method,
# https://github.com/mitkovetta/staining-normalization. It also adds one to each grey level, so that
# the logarithm of black is defined.
EMPTY_INTENSITY = 240
TRANSPARENT = 0.15
# One pixel in a hundred is extreme, so this many pixels have ten extreme ones.
MIN_STAINED = 1000
DENSITY = -np.log((np.arange(256) + 1) / EMPTY_INTENSITY)

Numbers = Sequence[float | list[float]]
# Transforms pixels, (1, n, 3) uint8, each independently of the others.
Transform = Callable[[np.ndarray], np.ndarray]


class StainError(Exception):
    """The stain cannot be estimated from the pixels; the message is the reason, in one line."""


class StainMethod(ABC):
    """A method of stain normalisation: fitted to pixels of a slide, applied to any of its tiles.

    Attributes:
        shapes: shape of each parameter of a stain.
        reference: parameters of the default target, with their source in a comment.
    """

    shapes: ClassVar[Mapping[str, tuple[int, ...]]]
    reference: ClassVar[Mapping[str, Numbers]]

    @abstractmethod
    def fit(self, pixels: np.ndarray) -> dict[str, np.ndarray]:
        """Return the parameters of the stain of some pixels.

        Args:
            pixels: RGB, (n, 3) uint8, of tissue and possibly glass.

        Raises:
            StainError: the stain cannot be estimated.
        """

    @abstractmethod
    def find_fault(self, values: Mapping[str, np.ndarray]) -> str | None:
        """Return why finite parameters of the right shape are not a stain; None if they are."""

    @abstractmethod
    def transform(
        self, source: Mapping[str, np.ndarray], target: Mapping[str, np.ndarray]
    ) -> Transform:
        """Return the transform from the colours of one stain to those of another."""


def check_stained(count: int, n: int, channels: str) -> None:
    """Refuse pixels of which too few are stained.

    Args:
        count: number of stained pixels.
        n: number of all pixels.
        channels: in which they were compared to `TRANSPARENT`, for the message.

    Raises:
        StainError: fewer than `MIN_STAINED` are stained.
    """
    if count < MIN_STAINED:
        raise StainError(
            f"it has too little stain: {count:,} of {n:,} pixels have an optical density of "
            f"{TRANSPARENT:g} or more in {channels}, but at least {MIN_STAINED:,} are needed"
        )
