"""Elastic deformation of patches by a smooth random field, resampled in passes over 2-D images."""

import cv2
import numpy as np

from gigatile.records.shuffle import random64
from gigatile.tasks.volume_segmentation.scratch import scratch

# The input pipeline runs a thread for each core.
cv2.setNumThreads(1)

# Intervals between the control points of the field along each axis.
_INTERVALS = 8
# The largest displacement of a control point, in intervals: up to 1 / 2.48 of them, a field of
# cubic B-splines never folds (Choi and Lee 2000, https://doi.org/10.1006/gmod.2000.0531).
_MOST = 0.4
# Control points at each end that do not move across the edge of the patch: nothing comes from
# outside. They do move along the edge.
_FIXED = 3


def deform(image: np.ndarray, labels: np.ndarray, seed: int, extent: float) -> None:
    """Deform a patch in place.

    The first pass moves voxels within planes of the first axis, the second along that axis. Both
    interpolate linearly, to 1/32 voxel; a label is that of the nearest voxel.

    Args:
        image: (x, y, z, C) float16.
        labels: (x, y, z) uint8.
        seed: of the field.
        extent: of the displacements, 0 to 1; 1: up to 1/20 of the side of the patch.
    """
    field = displacements(image.shape[:3], seed, extent)
    x, y, z = image.shape[:3]
    rows, columns = np.mgrid[:y, :z].astype(np.float32)
    for plane in range(x):
        _remap(image, labels, (plane,), columns + field[2, plane], rows + field[1, plane])
    rows, columns = np.mgrid[:x, :z].astype(np.float32)
    for plane in range(y):
        _remap(image, labels, (slice(None), plane), columns, rows + field[0, :, plane])


def displacements(shape: tuple[int, ...], seed: int, extent: float) -> np.ndarray:
    """Return how far each voxel moves along each axis, in voxels: (3, x, y, z) float32.

    At the edges of the patch, nothing moves across them.
    """
    points = _INTERVALS + 3
    random = random64(seed, np.arange(3 * points**3)) >> np.uint64(11)
    control = (random * 2.0**-52 - 1).reshape(3, points, points, points)
    sides = np.array(shape).reshape(3, 1, 1, 1) / _INTERVALS
    free = np.zeros(points)
    free[_FIXED:-_FIXED] = 1
    control *= extent * _MOST * sides
    for axis in range(3):
        control[axis] *= np.moveaxis(free[:, None, None], 0, axis)
    field = control.astype(np.float32)
    for axis, side in enumerate(shape, 1):
        field = np.moveaxis(np.tensordot(_weights(side), field, (1, axis)), 0, axis)
    return np.ascontiguousarray(field)


def _weights(side: int) -> np.ndarray:
    """Return the weight of each control point for each voxel: (side, points) float32."""
    position = np.arange(side) * _INTERVALS / max(1, side - 1)
    # Point 1 is at the first voxel, and the last but one at the last voxel.
    distance = np.abs(position[:, None] + 1 - np.arange(_INTERVALS + 3))
    near = 2 / 3 - distance**2 + distance**3 / 2
    far = np.clip(2 - distance, 0, None) ** 3 / 6
    return np.where(distance < 1, near, far).astype(np.float32)


def _remap(
    image: np.ndarray, labels: np.ndarray, plane: tuple, columns: np.ndarray, rows: np.ndarray
) -> None:
    """Resample a plane of image and labels at other columns and rows."""
    channels = image.shape[3]
    single = scratch("single", (*columns.shape, channels), np.float32)
    single[...] = image[plane]
    for first in range(0, channels, 4):  # OpenCV takes up to four channels
        part = np.ascontiguousarray(single[..., first : first + 4])
        moved = cv2.remap(part, columns, rows, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        image[plane][..., first : first + 4] = moved.reshape(part.shape)
    flat = np.ascontiguousarray(labels[plane])
    labels[plane] = cv2.remap(
        flat, columns, rows, cv2.INTER_NEAREST, borderMode=cv2.BORDER_REPLICATE
    )
