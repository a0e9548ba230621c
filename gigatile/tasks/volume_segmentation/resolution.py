"""Blurred and low-resolution channels of patches, as with a poorer scanner."""

import cv2
import numpy as np

from gigatile.tasks.volume_segmentation.patch_sampling import Patch

# The input pipeline runs a thread for each core.
cv2.setNumThreads(1)


def soften(image: np.ndarray, patch: Patch) -> None:
    """Blur channels and lower their resolution, in place. Values outside the head stay 0.

    Args:
        image: (x, y, z, C) float16; a voxel is outside the head where all channels are 0.
        patch: the changes.
    """
    chosen = np.flatnonzero((patch.blur > 0) | (patch.zoom < 1)).tolist()
    if not chosen:
        return
    outside = ~image.any(axis=-1)
    for channel in chosen:
        values = np.ascontiguousarray(image[..., channel], np.float32)
        if patch.blur[channel] > 0:
            values = blurred(values, float(patch.blur[channel]))
        if patch.zoom[channel] < 1:
            values = low_resolution(values, float(patch.zoom[channel]))
        values[outside] = 0
        image[..., channel] = values


def blurred(values: np.ndarray, sigma: float) -> np.ndarray:
    """Return a volume, (x, y, z) float32, after a Gaussian filter, as `scipy.ndimage` defines it.

    Args:
        values: the volume.
        sigma: standard deviation in voxels; the filter ends at four of them.
    """
    x, y, z = values.shape
    distance = np.arange(-int(4 * sigma + 0.5), int(4 * sigma + 0.5) + 1)
    weights = np.exp(-0.5 * (distance / sigma) ** 2)
    kernel, point = weights / weights.sum(), np.ones(1)
    border = cv2.BORDER_REFLECT
    result = cv2.sepFilter2D(values.reshape(x * y, z), -1, kernel, point, borderType=border)
    result = result.reshape(x, y, z)
    for plane in result:
        plane[...] = cv2.sepFilter2D(plane, -1, point, kernel, borderType=border)
    along_x = cv2.sepFilter2D(result.reshape(x, y * z), -1, point, kernel, borderType=border)
    return along_x.reshape(x, y, z)


def low_resolution(values: np.ndarray, zoom: float) -> np.ndarray:
    """Return a volume, (x, y, z) float32, that lost its details.

    As nnU-Net (Isensee et al. 2021, https://doi.org/10.1038/s41592-020-01008-z): fewer voxels, each
    the nearest one, and then the same number again by linear interpolation.

    Args:
        values: the volume.
        zoom: share of the voxels along each axis that are left.
    """
    x, y, z = values.shape
    counts = [max(1, round(side * zoom)) for side in values.shape]
    nearest = [
        ((np.arange(count) + 0.5) * side / count).astype(int)
        for side, count in zip(values.shape, counts, strict=True)
    ]
    small = values[np.ix_(*nearest)]
    planes = np.stack([cv2.resize(plane, (z, y)) for plane in small]).reshape(counts[0], y * z)
    return cv2.resize(planes, (y * z, x)).reshape(x, y, z)
