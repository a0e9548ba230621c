"""Stain normalisation of Macenko et al. 2009, https://doi.org/10.1109/ISBI.2009.5193250.

Estimates the colours of haematoxylin and eosin, and replaces them by those of the target. Glass
that is not bright is treated as faint stain. As in the published code,
https://github.com/mitkovetta/staining-normalization, a pixel becomes a mixture of the two stains: a
tint of the glass is lost, and so is any colour that neither stain has. Black stays dark.
"""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import cv2
import numpy as np

from gigatile.slides.stains.method import (
    DENSITY,
    EMPTY_INTENSITY,
    TRANSPARENT,
    StainError,
    StainMethod,
    Transform,
    check_stained,
)

# The percentile for extremes: alpha of the published code.
EXTREME = 1
# Degrees between two stains. Camera noise of ±4 grey levels spreads a single stain over 6°. In 371
# real lung tiles, haematoxylin and eosin are 7° to 44° apart; the published pair is 22° apart.
MIN_ANGLE = 6.0
# In natural logarithms; a lower strength is not a stain.
MIN_STRENGTH = 1e-2

# By grey level: optical density, and intensity above that of an empty slide. The latter makes up
# for the one that is added to grey levels.
_STAIN = DENSITY.clip(0).astype(np.float32)
_BRIGHTER = (np.arange(256, dtype=np.float32) - (EMPTY_INTENSITY - 1)).clip(0) - 1


class Macenko(StainMethod):
    """The method, with these parameters of a stain.

    vectors: the optical densities (natural logarithm) of haematoxylin and eosin in red, green and
        blue, each of unit length.
    strengths: the 99th percentile of the concentration of each.
    """

    shapes: ClassVar = {"vectors": (2, 3), "strengths": (2,)}
    # HERef and maxCRef of the published code.
    reference: ClassVar = {
        "vectors": [[0.5626, 0.7201, 0.4062], [0.2159, 0.8012, 0.5581]],
        "strengths": [1.9705, 1.0308],
    }

    def fit(self, pixels: np.ndarray) -> dict[str, np.ndarray]:
        """Return vectors (2, 3) and strengths (2,), as in the published code.

        One difference: strengths are computed from stained pixels. The published code includes
        glass, which lowers them.
        """
        density = DENSITY[pixels]
        density = density[(density >= TRANSPARENT).any(axis=1)]
        dark = density[(density >= TRANSPARENT).all(axis=1)]
        check_stained(len(dark), len(pixels), "all channels")
        mean = dark.mean(axis=0)
        plane = np.linalg.eigh(np.cov(dark.T))[1][:, 1:]
        # Angles are relative to the mean colour: the sign of an eigenvector is arbitrary, and
        # angles relative to it may wrap around.
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

    def find_fault(self, values: Mapping[str, np.ndarray]) -> str | None:
        """See `StainMethod`."""
        vectors, strengths = values["vectors"], values["strengths"]
        if abs(np.linalg.norm(vectors, axis=1) - 1).max() > 1e-3 or vectors.min() < 0:
            return (
                "stain vectors must have unit length and no negative part, found "
                f"{vectors.tolist()}"
            )
        angle = np.degrees(np.arccos(min(1.0, vectors[0] @ vectors[1])))
        if angle < MIN_ANGLE:
            return (
                f"it has only one stain: its two stain vectors are {angle:.1f}° apart, but must be "
                f"at least {MIN_ANGLE:g}° apart"
            )
        if vectors[0, 0] < vectors[1, 0]:
            return (
                f"haematoxylin, which absorbs more red, must come first, found {vectors.tolist()}"
            )
        if strengths.min() < MIN_STRENGTH:
            return f"stain strengths must be at least {MIN_STRENGTH:g}, found {strengths.tolist()}"
        return None

    def transform(
        self, source: Mapping[str, np.ndarray], target: Mapping[str, np.ndarray]
    ) -> Transform:
        """See `StainMethod`."""
        return partial(_transform, *_matrices(source, target))


def _matrices(
    source: Mapping[str, np.ndarray], target: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the matrices from densities to concentrations, and to logarithms of grey levels.

    They are (3, 3) and (3, 4) float32. The third concentration is always 0: OpenCV is several times
    faster with three channels.
    """
    gain = target["strengths"] / source["strengths"]
    unmix, mix = np.zeros((3, 3), np.float32), np.zeros((3, 4), np.float32)
    unmix[:2] = gain[:, None] * np.linalg.pinv(np.transpose(source["vectors"]))
    mix[:, :2] = -np.transpose(target["vectors"])
    mix[:, 3] = np.log(EMPTY_INTENSITY)
    return unmix, mix


def _transform(unmix: np.ndarray, mix: np.ndarray, tile: np.ndarray) -> np.ndarray:
    concentrations = cv2.transform(cv2.LUT(tile, _STAIN), unmix)
    # The published code allows negative concentrations, which give pixels that glow.
    levels = cv2.transform(np.maximum(concentrations, 0, out=concentrations), mix)
    # Intensity above that of an empty slide is kept.
    return cv2.add(cv2.exp(levels, dst=levels), cv2.LUT(tile, _BRIGHTER), dtype=cv2.CV_8U)
