"""Which patch of a volume training is shown, and how it is changed: all follows from one number.

The order of samples (`gigatile/training/sample_order.py`) gives each sample a random seed.
Where the patch lies and what is done to it are random numbers made of the draw, each with a counter
of its own, so a patch is the same on every machine, rank and thread.
"""

import math
from dataclasses import dataclass

import numpy as np

from gigatile.records.shuffle import random64
from gigatile.records.volume import VolumeHead
from gigatile.settings.patches import PatchSettings

# What the random numbers of a draw are for.
_CENTRED, _LABEL, _VOXEL = 0, 1, 2
_CORNER, _FLIP = slice(3, 6), slice(6, 9)
_TURNED, _ANGLE, _SCALE = 9, slice(10, 13), 13
NOISE = 14
_CHANNELS = 16  # and from here on four of each channel


@dataclass(frozen=True)
class Patch:
    """Where a patch lies, and what is done to it.

    Attributes:
        start: the first voxel, before anything is done; may lie outside.
        centred: the value of the label on whose voxel it is centred; 0: it lies anywhere.
        flipped: along which axes.
        turned: (3, 3) float64, from a place in the patch to one in the volume, both seen from its
            middle, flips included; None: it is neither turned nor scaled.
        brightness, contrast, gamma, noise: (C,) float64 of each channel: what is added and what is
            multiplied with, the exponent, and the standard deviation of the noise. None: the
            intensities stay as they are.
    """

    start: tuple[int, int, int]
    centred: int
    flipped: tuple[bool, bool, bool]
    turned: np.ndarray | None
    brightness: np.ndarray
    contrast: np.ndarray
    gamma: np.ndarray
    noise: np.ndarray


def choose_patch(head: VolumeHead, draw: int, settings: PatchSettings) -> Patch:
    """Return the patch that belongs to a draw.

    A share `settings.foreground` is centred on a voxel of a label: each label that the case has is
    as likely as any other, and so is each of its voxels in the head. The others lie anywhere. All
    lie inside where the volume is large enough; else the volume lies in their middle.

    Args:
        head: of the case.
        draw: a random number, 0 … 2⁶⁴ - 1.
        settings: the size, and what may be done.
    """
    channels = len(head.channels)
    numbers = random64(draw, np.arange(_CHANNELS + 4 * channels))
    shares = _shares(numbers)
    room = [whole - side for whole, side in zip(head.shape, settings.size, strict=True)]
    centred = 0
    corner = [
        below(number, max(0, more) + 1)
        for number, more in zip(numbers[_CORNER].tolist(), room, strict=True)
    ]
    if len(head.foreground) and shares[_CENTRED] < settings.foreground:
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
    flips = (shares[_FLIP] < 0.5) & settings.flips
    each = shares[_CHANNELS:].reshape(channels, 4).T
    up_to = settings.intensity
    return Patch(
        start=(x, y, z),
        centred=centred,
        flipped=(bool(flips[0]), bool(flips[1]), bool(flips[2])),
        turned=_turn(head, shares, flips, settings) if shares[_TURNED] < settings.rotated else None,
        brightness=up_to * (2 * each[0] - 1),
        contrast=1 + up_to * (2 * each[1] - 1),
        gamma=1 + up_to * (2 * each[2] - 1),
        noise=up_to * each[3],
    )


def _shares(numbers: np.ndarray) -> np.ndarray:
    """Return random numbers as shares, 0 ≤ share < 1: float64, exact."""
    return (numbers >> np.uint64(11)) * 2.0**-53


def below(number: int, limit: int) -> int:
    """Return a whole number from 0 to limit - 1."""
    return number * limit >> 64


def _turn(
    head: VolumeHead, shares: np.ndarray, flips: np.ndarray, settings: PatchSettings
) -> np.ndarray:
    turned = np.eye(3)
    for axis, angle in enumerate(np.radians(settings.rotation) * (2 * shares[_ANGLE] - 1)):
        first, other = (axis + 1) % 3, (axis + 2) % 3
        about = np.eye(3)
        about[first, first] = about[other, other] = math.cos(angle)
        about[first, other], about[other, first] = -math.sin(angle), math.sin(angle)
        turned = turned @ about
    # What is to look larger comes from a smaller part of the volume.
    larger = 1 + settings.scaling * (2 * shares[_SCALE] - 1)
    # Turned are millimetres: where voxels are longer upwards, a column is so many times a row.
    spacing = np.array(head.spacing or (1, 1, 1), float)
    return turned * spacing / spacing[:, None] / larger * np.where(flips, -1, 1)
