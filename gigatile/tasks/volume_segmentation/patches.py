"""Read and augment patches of volumes."""

import time

import cv2
import numpy as np

from gigatile.records.volume import VolumeHead, VolumeRecord
from gigatile.settings.patches import PatchSettings
from gigatile.tasks.volume_segmentation.elastic import deform
from gigatile.tasks.volume_segmentation.intensities import change_intensities
from gigatile.tasks.volume_segmentation.patch_sampling import choose_patch
from gigatile.tasks.volume_segmentation.resolution import soften
from gigatile.tasks.volume_segmentation.rotation import fill_rotated, rotated_box
from gigatile.tasks.volume_segmentation.scratch import scratch

# The input pipeline runs a thread for each core.
cv2.setNumThreads(1)


def fill_patch(
    record: VolumeRecord,
    seed: int,
    settings: PatchSettings,
    image_out: np.ndarray,
    labels_out: np.ndarray,
) -> tuple[float, float]:
    """Fill arrays with the patch of a seed; voxels outside the head are 0.

    Threads can fill patches in parallel; the result does not depend on their number.

    Args:
        record: the record of the case.
        seed: the seed of the sample, 0 … 2⁶⁴ - 1.
        settings: size and augmentation.
        image_out: (*settings.size, C) float16, contiguous.
        labels_out: (*settings.size) uint8, contiguous; all 0 if the case has no segmentation.

    Returns:
        The seconds for reading the voxels, and for augmenting them.

    Raises:
        RecordError: the record is damaged. The content of the arrays is then undefined.
    """
    if image_out.shape[:3] != settings.size or not image_out.flags.c_contiguous:
        raise ValueError(f"image_out: {image_out.shape}; must be {settings.size}, contiguous")
    patch = choose_patch(record.head, seed, settings)
    start = time.perf_counter()
    if patch.rotation is None:
        # Flip while reading, except along the last axis, in which voxels are contiguous.
        x, y, z = (-1 if flipped else 1 for flipped in patch.flipped)
        record.read_into(patch.start, image_out[::x, ::y], labels_out[::x, ::y])
        read = time.perf_counter()
        if z < 0:
            _flip_columns(image_out)
            _flip_columns(labels_out)
    else:
        read = fill_rotated(record, patch.start, patch.rotation, image_out, labels_out)
    if patch.elastic_extent:
        deform(image_out, labels_out, patch.elastic_seed, patch.elastic_extent)
    soften(image_out, patch)
    if settings.intensity:
        change_intensities(image_out, record.head.ranges, patch, seed)
    return read - start, time.perf_counter() - read


def box_of_patch(
    head: VolumeHead, seed: int, settings: PatchSettings
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return first voxel and size of the box that `fill_patch` reads."""
    patch = choose_patch(head, seed, settings)
    if patch.rotation is None:
        return patch.start, settings.size
    return rotated_box(head, patch.start, patch.rotation, settings.size)


def _flip_columns(array: np.ndarray) -> None:
    plane = scratch("flipped", array.shape[1:], array.dtype)
    for columns in array:
        cv2.flip(columns, 1, dst=plane)
        columns[...] = plane
