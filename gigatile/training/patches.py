"""Which patch of a volume training is shown, and how it is changed: all follows from one number.

The order of samples (`gigatile/training/order.py`) gives each sample a random number, its draw.
Where the patch lies and what is done to it are random numbers made of the draw, each with a counter
of its own, so a patch is the same on every machine, rank and thread.
"""

import functools
import math
import threading
import time
from dataclasses import dataclass

import cv2
import numpy as np

from gigatile.records.shuffle import key64, random64
from gigatile.records.volume import VolumeHead, VolumeRecord
from gigatile.settings.patches import PatchSettings

# Whoever calls has threads of its own, one for each core.
cv2.setNumThreads(1)

# What the random numbers of a draw are for.
_CENTRED, _LABEL, _VOXEL = 0, 1, 2
_CORNER, _FLIP = slice(3, 6), slice(6, 9)
_TURNED, _ANGLE, _SCALE = 9, slice(10, 13), 13
_NOISE = 14
_CHANNELS = 16  # and from here on four of each channel

# Planes of a patch are given pieces of one noise, which begin at any of so many voxels.
_PIECES = 1 << 15
# All values of float16 in the order of their bits; those that are no number are 0.
_FLOATS = np.nan_to_num(
    np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32), posinf=0, neginf=0
)
_LARGEST = np.float32(np.finfo(np.float16).max)
# Each thread has arrays of its own, used again and again: new memory is slow.
_MINE = threading.local()


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
        _below(number, max(0, more) + 1)
        for number, more in zip(numbers[_CORNER].tolist(), room, strict=True)
    ]
    if len(head.foreground) and shares[_CENTRED] < settings.foreground:
        values = head.foreground[:, 0]
        present = np.unique(values)
        centred = int(present[_below(int(numbers[_LABEL]), len(present))])
        first, last = np.searchsorted(values, [centred, centred + 1]).tolist()
        voxel = head.foreground[first + _below(int(numbers[_VOXEL]), last - first), 1:].tolist()
        corner = [
            min(max(place - side // 2, 0), max(0, more))
            for place, side, more in zip(voxel, settings.size, room, strict=True)
        ]
    x, y, z = (first if more >= 0 else more // 2 for first, more in zip(corner, room, strict=True))
    flips = (shares[_FLIP] < 0.5) & settings.flips
    each = shares[_CHANNELS:].reshape(channels, 4).T
    up_to = settings.intensity
    return Patch(
        start=(x, y, z),
        centred=centred,
        flipped=(bool(flips[0]), bool(flips[1]), bool(flips[2])),
        turned=_turn(head, shares, flips, settings) if shares[_TURNED] < settings.turned else None,
        brightness=up_to * (2 * each[0] - 1),
        contrast=1 + up_to * (2 * each[1] - 1),
        gamma=1 + up_to * (2 * each[2] - 1),
        noise=up_to * each[3],
    )


def _shares(numbers: np.ndarray) -> np.ndarray:
    """Return random numbers as shares, 0 ≤ share < 1: float64, exact."""
    return (numbers >> np.uint64(11)) * 2.0**-53


def _below(number: int, limit: int) -> int:
    """Return a whole number from 0 to limit - 1."""
    return number * limit >> 64


def _turn(
    head: VolumeHead, shares: np.ndarray, flips: np.ndarray, settings: PatchSettings
) -> np.ndarray:
    turned = np.eye(3)
    for axis, angle in enumerate(np.radians(settings.rotation) * (2 * shares[_ANGLE] - 1)):
        one, other = (axis + 1) % 3, (axis + 2) % 3
        about = np.eye(3)
        about[one, one] = about[other, other] = math.cos(angle)
        about[one, other], about[other, one] = -math.sin(angle), math.sin(angle)
        turned = turned @ about
    # What is to look larger comes from a smaller part of the volume.
    larger = 1 + settings.scaling * (2 * shares[_SCALE] - 1)
    # Turned are millimetres: where voxels are longer upwards, a column is so many times a row.
    spacing = np.array(head.grid.get("spacing", (1, 1, 1)), float)
    return turned * spacing / spacing[:, None] / larger * np.where(flips, -1, 1)


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
        read = _turned(record, patch.start, patch.turned, image_out, labels_out)
    if settings.intensity:
        _change(image_out, record.head.ranges, patch, draw)
    return read - begun, time.perf_counter() - read


def _flip_columns(array: np.ndarray) -> None:
    plane = _own("flipped", array.shape[1:], array.dtype)
    for one in array:
        cv2.flip(one, 1, dst=plane)
        one[...] = plane


def _own(name: str, shape: tuple[int, ...], kind: np.typing.DTypeLike) -> np.ndarray:
    """Return an array of this thread, its content by chance."""
    size = math.prod(shape) * np.dtype(kind).itemsize
    memory: np.ndarray | None = getattr(_MINE, name, None)
    if memory is None or len(memory) < size:
        memory = np.empty(size, np.uint8)
        setattr(_MINE, name, memory)
    return memory[:size].view(kind).reshape(shape)


# --- Turning


def _turned(
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
    image = _own("image", (*extent, channels), np.float16)
    labels = _own("labels", extent, np.uint8)
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
    found = [slice(first, first + 4) for first in range(0, channels - channels % 4, 4)]
    rest = channels - channels % 4
    if channels % 4 == 3:
        return [*found, slice(rest, channels)]
    return found + [slice(one, one + 1) for one in range(rest, channels)]


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
        place = self._at_0 + self._per_plane * plane
        return np.column_stack([self._inside, place])[::-1][:, [1, 0, 2]]

    def _between(self, second: int) -> np.ndarray:
        steep, along, up, first = self._rows
        return np.array([[1, 0, 0], [up, steep, first + along * second]])

    def image(self, planes: np.ndarray, out: np.ndarray) -> None:
        """Fill out (x, y, z, C) float16 out of planes (n, y, z, C) float16."""
        count, height, width, channels = planes.shape
        x, y, z = self._size
        single = _own("single", (height, width, channels), np.float32)
        in_planes = _own("in_planes", (count, y, z, channels), np.float32)
        for number, plane in enumerate(planes):
            _convert(plane, single)
            _warp(single, self._in_plane(number), in_planes[number], cv2.INTER_LINEAR)
        rows = _own("rows", (x, z, channels), np.float32)
        for second in range(y):
            _warp(in_planes[:, second], self._between(second), rows, cv2.INTER_LINEAR)
            _convert(rows, out[:, second])

    def labels(self, planes: np.ndarray, out: np.ndarray) -> None:
        """Fill out (x, y, z) uint8 out of planes (n, y, z) uint8."""
        _, y, z = self._size
        in_planes = _own("in_planes", (len(planes), y, z), np.uint8)
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


# --- Intensity


def _change(image: np.ndarray, ranges: np.ndarray, patch: Patch, draw: int) -> None:
    """Change intensities, (x, y, z, C) float16; 0 stays 0, so outside the head nothing changes."""
    x, y, z = image.shape[:3]
    table = _table(ranges, patch)
    # A channel without values was filled with 0 and stays so.
    deviations = np.where(ranges[:, 1] > ranges[:, 0], patch.noise, 0).astype(np.float32)
    noise = (_normal(y * z + _PIECES, len(ranges)) * deviations).astype(np.float16)
    key = int(random64(draw, np.array([_NOISE]))[0])
    for plane, number in zip(image, random64(key, np.arange(x)).tolist(), strict=True):
        bits = plane.view(np.uint16)
        cv2.LUT(bits, table, dst=bits)
        inside = _not_zero(bits)
        first = _below(number, _PIECES + 1)
        cv2.add(plane, noise[first : first + y * z].reshape(plane.shape), dst=plane, mask=inside)


def _table(ranges: np.ndarray, patch: Patch) -> np.ndarray:
    """Return what becomes of each value of float16, as bits: (1, 65536, C) uint16."""
    found = np.empty((len(_FLOATS), len(ranges)), np.float16)
    for channel, (low, high) in enumerate(ranges):
        values = _FLOATS
        if high > low:
            share = np.clip((values - low) / (high - low), 0, 1)
            values = low + (high - low) * share ** np.float32(patch.gamma[channel])
        values = values * np.float32(patch.contrast[channel]) + np.float32(
            patch.brightness[channel]
        )
        found[:, channel] = np.clip(values, -_LARGEST, _LARGEST)
    found[_FLOATS == 0] = 0
    return found.view(np.uint16)[None]


@functools.cache
def _normal(voxels: int, channels: int) -> np.ndarray:
    """Return nearly normal random numbers, the same on every machine: (voxels, C) float32."""
    numbers = random64(key64("noise"), np.arange(voxels * channels))
    # The sum of eight bytes (Irwin and Hall 1927): whole numbers, so nothing is rounded.
    sums = numbers.view(np.uint8).reshape(-1, 8).sum(axis=1, dtype=np.int64) - 8 * 255 / 2
    return (sums / math.sqrt(8 * (2**16 - 1) / 12)).astype(np.float32).reshape(voxels, channels)


def _not_zero(plane: np.ndarray) -> np.ndarray:
    """Return where not all channels are 0, of bits (y, z, C) uint16: (y, z) uint8."""
    channels = plane.shape[2]
    if channels in (1, 2, 4):
        return (plane.view(f"<u{2 * channels}")[..., 0] != 0).view(np.uint8)
    found = plane[..., 0] != 0
    for channel in range(1, channels):
        found |= plane[..., channel] != 0
    return found.view(np.uint8)
