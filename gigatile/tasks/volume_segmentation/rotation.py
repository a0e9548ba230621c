"""Rotated and scaled patches of volumes, interpolated in two passes over 2-D images."""

import time

import cv2
import numpy as np

from gigatile.records.volume import VolumeHead, VolumeRecord
from gigatile.tasks.volume_segmentation.scratch import scratch

# The input pipeline runs a thread for each core.
cv2.setNumThreads(1)


def fill_rotated(
    record: VolumeRecord,
    start: tuple[int, int, int],
    matrix: np.ndarray,
    image_out: np.ndarray,
    labels_out: np.ndarray,
) -> float:
    """Fill arrays with a rotated and scaled patch; return the time at which its voxels were read.

    Interpolates in two passes (Catmull and Smith 1980, https://doi.org/10.1145/965105.807505). A
    row of the patch along its first axis is a straight line through planes of the volume. The first
    pass interpolates between the four voxels around the line in each plane, the second between the
    two planes around each voxel of the patch: eight voxels in total, as in trilinear interpolation.
    A label is that of the voxel with the largest weight. Both passes warp 2-D images, for which
    OpenCV is fast.

    Args:
        record: the record of the case.
        start: the first voxel of the patch before the rotation.
        matrix: (3, 3) float64; see `Patch.rotation`.
        image_out: (x, y, z, C) float16.
        labels_out: (x, y, z) uint8.
    """
    size = image_out.shape[:3]
    # The axis with the planes that a row crosses most steeply: from plane to plane, it moves by at
    # most one voxel along the other axes.
    first = int(np.argmax(np.abs(matrix[:, 0])))
    axes = [first, *(axis for axis in range(3) if axis != first)]
    offset, low, high = _placed(record.head, start, matrix, size)
    extent = tuple((high - low).tolist())
    channels = image_out.shape[3]
    image = scratch("image", (*extent, channels), np.float16)
    labels = scratch("labels", extent, np.uint8)
    record.read_into(tuple(low.tolist()), image, labels)
    read = time.perf_counter()
    warp = _Warp(matrix[axes], (offset - low)[axes], size)
    planes = np.moveaxis(image, first, 0)
    for group in _channel_groups(channels):
        warp.image(planes[..., group], image_out[..., group])
    warp.labels(np.moveaxis(labels, first, 0), labels_out)
    return read


def rotated_box(
    head: VolumeHead,
    start: tuple[int, int, int],
    matrix: np.ndarray,
    size: tuple[int, int, int],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return first voxel and size of the box that `fill_rotated` reads."""
    _, low, high = _placed(head, start, matrix, size)
    return tuple(low.tolist()), tuple((high - low).tolist())


def _placed(
    head: VolumeHead, start: tuple[int, int, int], matrix: np.ndarray, size: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the offset of a rotated patch, and its box as `_box` does.

    Voxel p of the patch is at matrix @ p + offset in the volume.
    """
    centre = (np.array(size) - 1) / 2
    offset = start + centre - matrix @ centre
    steepest = np.abs(matrix[:, 0]).max()
    return offset, *_box(matrix, offset, size, 1 / steepest, head.shape)


def _box(
    matrix: np.ndarray,
    offset: np.ndarray,
    size: tuple[int, ...],
    margin: float,
    shape: tuple[int, int, int],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the box of voxels that a patch needs: the first along each axis, and the last + 1.

    Args:
        matrix, offset: from voxels of the patch to voxels of the volume.
        size: the shape of the patch.
        margin: extension of its rows along the first axis, to the next planes.
        shape: the shape of the volume.
    """
    ends = [np.array([0.0, side - 1]) for side in size]
    ends[0] += [-margin, margin]
    corners = np.stack(np.meshgrid(*ends), axis=-1).reshape(-1, 3) @ matrix.T + offset
    # At least one voxel, also for a patch outside the volume, which is 0.
    low = np.clip(np.floor(corners.min(axis=0)).astype(int), 0, np.array(shape) - 1)
    high = np.clip(np.ceil(corners.max(axis=0)).astype(int) + 1, low + 1, shape)
    return low, high


def _channel_groups(channels: int) -> list[slice]:
    """Return groups of 1, 3 or 4 channels to interpolate together; OpenCV is exact for these."""
    groups = [slice(first, first + 4) for first in range(0, channels - channels % 4, 4)]
    rest = channels - channels % 4
    if channels % 4 == 3:
        return [*groups, slice(rest, channels)]
    return groups + [slice(channel, channel + 1) for channel in range(rest, channels)]


class _Warp:
    """Interpolates a patch from planes of the volume; the rows are along axis 0 of both."""

    def __init__(self, matrix: np.ndarray, offset: np.ndarray, size: tuple[int, ...]) -> None:
        self._rows, self._size = np.array([*matrix[0], offset[0]]), size
        # Row (j, k) crosses plane s at i = (s - m01 j - m02 k - o0) / m00. With this i, its
        # position in the plane is linear in j, k and s.
        slope = matrix[1:, 0] / matrix[0, 0]
        self._in_row = matrix[1:, 1:] - np.outer(slope, matrix[0, 1:])
        self._per_plane = slope
        self._origin = offset[1:] - slope * offset[0]

    def _to_plane(self, plane: int) -> np.ndarray:
        """Return the affine map from (j, k) of a row to its position in a plane, for OpenCV."""
        # OpenCV has the last axis first.
        origin = self._origin + self._per_plane * plane
        return np.column_stack([self._in_row, origin])[::-1][:, [1, 0, 2]]

    def _to_planes(self, second: int) -> np.ndarray:
        """Return the affine map from (i, k) to (plane, k) for rows with j = `second`."""
        m00, m01, m02, origin = self._rows
        return np.array([[1, 0, 0], [m02, m00, origin + m01 * second]])

    def image(self, planes: np.ndarray, out: np.ndarray) -> None:
        """Fill `out`, (x, y, z, C) float16, from planes (n, y, z, C) float16."""
        count, height, width, channels = planes.shape
        x, y, z = self._size
        single = scratch("single", (height, width, channels), np.float32)
        in_planes = scratch("in_planes", (count, y, z, channels), np.float32)
        for number, plane in enumerate(planes):
            _convert(plane, single)
            _warp(single, self._to_plane(number), in_planes[number], cv2.INTER_LINEAR)
        rows = scratch("rows", (x, z, channels), np.float32)
        for second in range(y):
            _warp(in_planes[:, second], self._to_planes(second), rows, cv2.INTER_LINEAR)
            _convert(rows, out[:, second])

    def labels(self, planes: np.ndarray, out: np.ndarray) -> None:
        """Fill `out`, (x, y, z) uint8, from planes (n, y, z) uint8."""
        _, y, z = self._size
        in_planes = scratch("in_planes", (len(planes), y, z), np.uint8)
        for number, plane in enumerate(planes):
            contiguous = np.ascontiguousarray(plane)
            _warp(contiguous, self._to_plane(number), in_planes[number], cv2.INTER_NEAREST)
        for second in range(y):
            _warp(in_planes[:, second], self._to_planes(second), out[:, second], cv2.INTER_NEAREST)


def _warp(source: np.ndarray, matrix: np.ndarray, out: np.ndarray, interpolation: int) -> None:
    flags = interpolation | cv2.WARP_INVERSE_MAP
    cv2.warpAffine(source, matrix, out.shape[1::-1], dst=out, flags=flags)


def _convert(source: np.ndarray, out: np.ndarray) -> None:
    """Copy float16 to float32 or vice versa: (rows, columns, C)."""
    if not source[0].flags.c_contiguous:
        source = np.ascontiguousarray(source)
    if not out[0].flags.c_contiguous:
        out[...] = source
        return
    dtype = cv2.CV_32F if out.dtype == np.float32 else cv2.CV_16F
    rows = len(source)
    # Ten times as fast as NumPy. OpenCV's stubs do not allow to add a number.
    cv2.add(source.reshape(rows, -1), 0, dst=out.reshape(rows, -1), dtype=dtype)  # type: ignore[call-overload]
