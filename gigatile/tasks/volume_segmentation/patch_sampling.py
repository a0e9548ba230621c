"""Sample patches of volumes: their position and augmentation are functions of a seed.

The order of samples (`gigatile/training/sample_order.py`) has a seed for each sample. The random
numbers of a patch are computed from its seed and a counter, so a patch does not depend on the
machine, rank or thread.
"""

import math
from dataclasses import dataclass

import numpy as np

from gigatile.records.shuffle import random64, uniform_of
from gigatile.records.volume import VolumeHead
from gigatile.settings.patches import PatchSettings

# The counters of a patch's random numbers, by their use.
_CENTRED, _LABEL, _VOXEL = 0, 1, 2
_CORNER, _FLIP = slice(3, 6), slice(6, 9)
_ROTATED, _ANGLE, _SCALE = 9, slice(10, 13), 13
NOISE = 14
_CHANNELS = 16  # the first of four for each channel
# Far behind those of the channels.
_ELASTIC = 1 << 20
_MORE = _ELASTIC + 16  # the first of five for each channel


@dataclass(frozen=True)
class Patch:
    """The position of a patch, and its augmentation.

    Attributes:
        start: the first voxel, before the augmentation; may be outside the volume.
        centred: the label value of the voxel at its centre; 0: the position is uniform.
        flipped: whether it is flipped along each axis.
        rotation: (3, 3) float64, from positions in the patch to positions in the volume, both
            relative to its centre; contains scaling and flips. None: neither rotated nor scaled.
        brightness, contrast, gamma, noise: (C,) float64 for each channel: summand, factor,
            exponent, and standard deviation of the noise.
        inverted: (C,) bool, whether the exponent acts on the inverted contrast.
        blur: (C,) float64 standard deviation in voxels; 0: none.
        zoom: (C,) float64 share of the voxels along each axis that are left; 1: all.
        elastic_extent, elastic_seed: see `elastic.deform`; 0: not deformed.
    """

    start: tuple[int, int, int]
    centred: int
    flipped: tuple[bool, bool, bool]
    rotation: np.ndarray | None
    brightness: np.ndarray
    contrast: np.ndarray
    gamma: np.ndarray
    noise: np.ndarray
    inverted: np.ndarray
    blur: np.ndarray
    zoom: np.ndarray
    elastic_extent: float
    elastic_seed: int


def choose_patch(head: VolumeHead, seed: int, settings: PatchSettings) -> Patch:
    """Return the patch of a seed.

    A share `settings.foreground` of the patches is centred on a labelled voxel: a uniform choice of
    the case's labels, then of the voxels of this label in the head. The position of the others is
    uniform. All patches are inside the volume; a volume smaller than a patch is at its centre.

    Args:
        head: the header of the case's record.
        seed: the seed of the sample, 0 … 2⁶⁴ - 1.
        settings: size and augmentation.
    """
    channels = len(head.channels)
    numbers = random64(seed, np.arange(_CHANNELS + 4 * channels))
    uniform = uniform_of(numbers)
    room = [whole - side for whole, side in zip(head.shape, settings.size, strict=True)]
    centred = 0
    corner = [
        below(number, max(0, more) + 1)
        for number, more in zip(numbers[_CORNER].tolist(), room, strict=True)
    ]
    if len(head.foreground) and uniform[_CENTRED] < settings.foreground:
        values = head.foreground[:, 0]
        present = np.unique(values)
        centred = int(present[below(int(numbers[_LABEL]), len(present))])
        first, last = np.searchsorted(values, [centred, centred + 1]).tolist()
        voxel = head.foreground[first + below(int(numbers[_VOXEL]), last - first), 1:].tolist()
        corner = [
            min(max(position - side // 2, 0), max(0, more))
            for position, side, more in zip(voxel, settings.size, room, strict=True)
        ]
    x, y, z = (first if more >= 0 else more // 2 for first, more in zip(corner, room, strict=True))
    flips = (uniform[_FLIP] < 0.5) & settings.flips
    by_kind = uniform[_CHANNELS:].reshape(channels, 4).T
    limit = settings.intensity
    rotated = uniform[_ROTATED] < settings.rotated
    elastic = random64(seed, np.arange(_ELASTIC, _ELASTIC + 3))
    share, extent, _ = uniform_of(elastic).tolist()
    more = uniform_of(random64(seed, np.arange(_MORE, _MORE + 5 * channels)))
    inverted, is_blurred, sigma, is_low, zoom = more.reshape(channels, 5).T
    return Patch(
        start=(x, y, z),
        centred=centred,
        flipped=(bool(flips[0]), bool(flips[1]), bool(flips[2])),
        rotation=_rotation(head, uniform, flips, settings) if rotated else None,
        brightness=limit * (2 * by_kind[0] - 1),
        contrast=1 + limit * (2 * by_kind[1] - 1),
        gamma=1 + limit * (2 * by_kind[2] - 1),
        noise=limit * by_kind[3],
        inverted=inverted < settings.inverted_gamma,
        blur=np.where(is_blurred < settings.blur, 0.5 + 0.5 * sigma, 0),
        zoom=np.where(is_low < settings.low_resolution, 0.5 + 0.5 * zoom, 1),
        elastic_extent=extent if share < settings.elastic else 0.0,
        elastic_seed=int(elastic[2]),
    )


def below(number: int, limit: int) -> int:
    """Convert a random 64-bit number to a whole number from 0 to limit - 1."""
    return number * limit >> 64


def _rotation(
    head: VolumeHead, uniform: np.ndarray, flips: np.ndarray, settings: PatchSettings
) -> np.ndarray:
    rotation = np.eye(3)
    for axis, angle in enumerate(np.radians(settings.rotation) * (2 * uniform[_ANGLE] - 1)):
        first, second = (axis + 1) % 3, (axis + 2) % 3
        about_axis = np.eye(3)
        about_axis[first, first] = about_axis[second, second] = math.cos(angle)
        about_axis[first, second], about_axis[second, first] = -math.sin(angle), math.sin(angle)
        rotation = rotation @ about_axis
    # Magnification shows a smaller part of the volume.
    magnification = 1 + settings.scaling * (2 * uniform[_SCALE] - 1)
    # The rotation is in millimetres; the matrix is in voxels, which may be anisotropic.
    spacing = np.array(head.spacing or (1, 1, 1), float)
    return rotation * spacing / spacing[:, None] / magnification * np.where(flips, -1, 1)
