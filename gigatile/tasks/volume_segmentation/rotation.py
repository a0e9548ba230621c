"""Patches of volumes that are turned and scaled, by interpolation in two passes of pictures."""

import time

import cv2
import numpy as np

from gigatile.records.volume import VolumeRecord
from gigatile.tasks.volume_segmentation.scratch import scratch

# Whoever calls has threads of its own, one for each core.
cv2.setNumThreads(1)


def fill_rotated(
    record: VolumeRecord,
    start: tuple[int, int, int],
    matrix: np.ndarray,
    image_out: np.ndarray,
    labels_out: np.ndarray,
) -> float:
    """Fill arrays with a turned and scaled patch; return when its voxels were read.

    One interpolation in two passes (Catmull and Smith 1980, https://doi.org/10.1145/965105.807505).
    A row of the patch along its first axis is a straight line in the volume, which goes through
    planes of voxels. In each plane the four voxels around the line are weighted, and between two
    planes those on either side of the patch's voxel: eight voxels for each, as in trilinear
    interpolation. Labels are those of the one with the largest weight. Both passes are of pictures,
    which OpenCV is fast at.
    """
    size = image_out.shape[:3]
    middle = (np.array(size) - 1) / 2
    # Voxel o of the patch lies at matrix @ o + offset of the volume.
    offset = start + middle - matrix @ middle
    # The axis whose planes a row goes through most steeply: in each plane it moves by one at most.
    first = int(np.argmax(np.abs(matrix[:, 0])))
    axes = [first, *(axis for axis in range(3) if axis != first)]
    low, high = _box(matrix, offset, size, 1 / abs(matrix[first, 0]), record.head.shape)
    extent = tuple((high - low).tolist())
    channels = image_out.shape[3]
    image = scratch("image", (*extent, channels), np.float16)
    labels = scratch("labels", extent, np.uint8)
    record.read_into(tuple(low.tolist()), image, labels)
    read = time.perf_counter()
    warp = _Warp(matrix[axes], (offset - low)[axes], size)
    planes = np.moveaxis(image, first, 0)
    for group in _groups(channels):
        warp.image(planes[..., group], image_out[..., group])
    warp.labels(np.moveaxis(labels, first, 0), labels_out)
    return read


def _box(
    matrix: np.ndarray,
    offset: np.ndarray,
    size: tuple[int, ...],
    beyond: float,
    shape: tuple[int, int, int],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first voxel that a patch needs along each axis, and that after the last.

    Args:
        beyond: by how much its rows along the first axis are lengthened, to the next planes.
        matrix, offset, size, shape: of the patch, and of the volume.
    """
    ends = [np.array([0.0, side - 1]) for side in size]
    ends[0] += [-beyond, beyond]
    corners = np.stack(np.meshgrid(*ends), axis=-1).reshape(-1, 3) @ matrix.T + offset
    # One voxel at least: beside the volume all are 0.
    low = np.clip(np.floor(corners.min(axis=0)).astype(int), 0, np.array(shape) - 1)
    high = np.clip(np.ceil(corners.max(axis=0)).astype(int) + 1, low + 1, shape)
    return low, high


def _groups(channels: int) -> list[slice]:
    """Return how channels are interpolated together: OpenCV is exact with 1, 3 and 4."""
    groups = [slice(first, first + 4) for first in range(0, channels - channels % 4, 4)]
    rest = channels - channels % 4
    if channels % 4 == 3:
        return [*groups, slice(rest, channels)]
    return groups + [slice(channel, channel + 1) for channel in range(rest, channels)]


class _Warp:
    """From planes of the volume to a patch; axis 0 of both is that of the rows."""

    def __init__(self, matrix: np.ndarray, offset: np.ndarray, size: tuple[int, ...]) -> None:
        self._rows, self._size = np.array([*matrix[0], offset[0]]), size
        # A row is at plane s where its first place is (s - the rest of rows) / steep; put into the
        # two other places, they depend on the plane and on the row's number alone.
        steep = matrix[0, 0]
        across = matrix[1:, 0] / steep
        self._inside = matrix[1:, 1:] - np.outer(across, matrix[0, 1:])
        self._per_plane = across
        self._at_0 = offset[1:] - across * offset[0]

    def _in_plane(self, plane: int) -> np.ndarray:
        # OpenCV names the last axis first.
        origin = self._at_0 + self._per_plane * plane
        return np.column_stack([self._inside, origin])[::-1][:, [1, 0, 2]]

    def _between(self, second: int) -> np.ndarray:
        steep, along, up, first = self._rows
        return np.array([[1, 0, 0], [up, steep, first + along * second]])

    def image(self, planes: np.ndarray, out: np.ndarray) -> None:
        """Fill out (x, y, z, C) float16 out of planes (n, y, z, C) float16."""
        count, height, width, channels = planes.shape
        x, y, z = self._size
        single = scratch("single", (height, width, channels), np.float32)
        in_planes = scratch("in_planes", (count, y, z, channels), np.float32)
        for number, plane in enumerate(planes):
            _convert(plane, single)
            _warp(single, self._in_plane(number), in_planes[number], cv2.INTER_LINEAR)
        rows = scratch("rows", (x, z, channels), np.float32)
        for second in range(y):
            _warp(in_planes[:, second], self._between(second), rows, cv2.INTER_LINEAR)
            _convert(rows, out[:, second])

    def labels(self, planes: np.ndarray, out: np.ndarray) -> None:
        """Fill out (x, y, z) uint8 out of planes (n, y, z) uint8."""
        _, y, z = self._size
        in_planes = scratch("in_planes", (len(planes), y, z), np.uint8)
        for number, plane in enumerate(planes):
            _warp(
                np.ascontiguousarray(plane),
                self._in_plane(number),
                in_planes[number],
                cv2.INTER_NEAREST,
            )
        for second in range(y):
            _warp(in_planes[:, second], self._between(second), out[:, second], cv2.INTER_NEAREST)


def _warp(source: np.ndarray, matrix: np.ndarray, out: np.ndarray, how: int) -> None:
    cv2.warpAffine(source, matrix, out.shape[1::-1], dst=out, flags=how | cv2.WARP_INVERSE_MAP)


def _convert(source: np.ndarray, out: np.ndarray) -> None:
    """Copy float16 or float32, (rows, columns, C), to the other kind."""
    if not source[0].flags.c_contiguous:
        source = np.ascontiguousarray(source)
    if not out[0].flags.c_contiguous:
        out[...] = source
        return
    kind = cv2.CV_32F if out.dtype == np.float32 else cv2.CV_16F
    rows = len(source)
    # A tenth of the time that NumPy takes. That a number can be added, OpenCV's types do not say.
    cv2.add(source.reshape(rows, -1), 0, dst=out.reshape(rows, -1), dtype=kind)  # type: ignore[call-overload]
