"""Patches of volumes, read and changed as their draws say."""

import time

import cv2
import numpy as np

from gigatile.records.volume import VolumeRecord
from gigatile.settings.patches import PatchSettings
from gigatile.tasks.volume_segmentation.intensities import change_intensities
from gigatile.tasks.volume_segmentation.patch_sampling import choose_patch
from gigatile.tasks.volume_segmentation.rotation import fill_rotated
from gigatile.tasks.volume_segmentation.scratch import scratch

# Whoever calls has threads of its own, one for each core.
cv2.setNumThreads(1)


def fill_patch(
    record: VolumeRecord,
    draw: int,
    settings: PatchSettings,
    image_out: np.ndarray,
    labels_out: np.ndarray,
) -> tuple[float, float]:
    """Fill arrays with the patch that belongs to a draw; voxels outside the head are 0.

    Other threads run meanwhile. The result does not depend on how many there are.

    Args:
        record: of the case.
        draw: a random number, 0 … 2⁶⁴ - 1.
        settings: the size, and what may be done.
        image_out: (*settings.size, C) float16, contiguous.
        labels_out: (*settings.size) uint8, contiguous; all 0 where the case has no segmentation.

    Returns:
        The seconds that it took to read the voxels, and to change them.

    Raises:
        RecordError: the record is damaged. What is in the arrays then is nothing.
    """
    if image_out.shape[:3] != settings.size or not image_out.flags.c_contiguous:
        raise ValueError(f"image_out: {image_out.shape}; must be {settings.size}, contiguous")
    patch = choose_patch(record.head, draw, settings)
    begun = time.perf_counter()
    if patch.turned is None:
        # Read as it will lie, but for the columns: what is in them lies together.
        x, y, z = (-1 if flipped else 1 for flipped in patch.flipped)
        record.read_into(patch.start, image_out[::x, ::y], labels_out[::x, ::y])
        read = time.perf_counter()
        if z < 0:
            _flip_columns(image_out)
            _flip_columns(labels_out)
    else:
        read = fill_rotated(record, patch.start, patch.turned, image_out, labels_out)
    if settings.intensity:
        change_intensities(image_out, record.head.ranges, patch, draw)
    return read - begun, time.perf_counter() - read


def _flip_columns(array: np.ndarray) -> None:
    plane = scratch("flipped", array.shape[1:], array.dtype)
    for columns in array:
        cv2.flip(columns, 1, dst=plane)
        columns[...] = plane
