"""Augment the intensities of patches: brightness, contrast, gamma and noise."""

import cv2
import numpy as np

from gigatile.records.shuffle import normal_numbers, random64
from gigatile.tasks.volume_segmentation.patch_sampling import NOISE, Patch, below

# The input pipeline runs a thread for each core.
cv2.setNumThreads(1)

# All planes take their noise from the same array, from a random offset up to this one.
_MAX_OFFSET = 1 << 15
# All values of float16 in the order of their bits, with 0 for NaN and infinity.
_FLOATS = np.nan_to_num(
    np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32), posinf=0, neginf=0
)
_LARGEST = np.float32(np.finfo(np.float16).max)


def change_intensities(image: np.ndarray, ranges: np.ndarray, patch: Patch, seed: int) -> None:
    """Augment the intensities of an image in place. Values of 0, outside the head, stay 0.

    Args:
        image: (x, y, z, C) float16.
        ranges: (C, 2) minimum and maximum of the nonzero values of each channel.
        patch: the changes.
        seed: the seed of the sample.
    """
    x, y, z = image.shape[:3]
    table = _lookup_table(ranges, patch)
    # A missing channel was filled with 0 and stays 0.
    deviations = np.where(ranges[:, 1] > ranges[:, 0], patch.noise, 0).astype(np.float32)
    numbers = normal_numbers((y * z + _MAX_OFFSET) * len(ranges)).reshape(-1, len(ranges))
    noise = (numbers * deviations).astype(np.float16)
    key = int(random64(seed, np.array([NOISE]))[0])
    for plane, number in zip(image, random64(key, np.arange(x)).tolist(), strict=True):
        bits = plane.view(np.uint16)
        cv2.LUT(bits, table, dst=bits)
        inside = _not_zero(bits)
        first = below(number, _MAX_OFFSET + 1)
        cv2.add(plane, noise[first : first + y * z].reshape(plane.shape), dst=plane, mask=inside)


def _lookup_table(ranges: np.ndarray, patch: Patch) -> np.ndarray:
    """Return the result for each value of float16, as bits: (1, 65536, C) uint16."""
    table = np.empty((len(_FLOATS), len(ranges)), np.float16)
    for channel, (low, high) in enumerate(ranges):
        values = _FLOATS
        if high > low:
            share = np.clip((values - low) / (high - low), 0, 1)
            if patch.inverted[channel]:
                share = 1 - (1 - share) ** np.float32(patch.gamma[channel])
            else:
                share = share ** np.float32(patch.gamma[channel])
            values = low + (high - low) * share
        values = values * np.float32(patch.contrast[channel]) + np.float32(
            patch.brightness[channel]
        )
        table[:, channel] = np.clip(values, -_LARGEST, _LARGEST)
    table[_FLOATS == 0] = 0
    return table.view(np.uint16)[None]


def _not_zero(plane: np.ndarray) -> np.ndarray:
    """Return where any channel of bits, (y, z, C) uint16, is not 0: (y, z) uint8."""
    channels = plane.shape[2]
    if channels in (1, 2, 4):
        return (plane.view(f"<u{2 * channels}")[..., 0] != 0).view(np.uint8)
    not_zero = plane[..., 0] != 0
    for channel in range(1, channels):
        not_zero |= plane[..., channel] != 0
    return not_zero.view(np.uint8)
