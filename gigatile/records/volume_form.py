"""The volume record: a case, stored so that any box of voxels can be read without the rest.

A record is a tf.train.Example in three parts: the head, a check of the head, and the voxels.
Concatenated messages are read as one
(https://protobuf.dev/programming-guides/encoding/#last-one-wins). The offset of the voxels follows
from the length of the head, with which the record starts.

All features are bytes: `case`; `head`, JSON; `crcs`, the CRC-32C of each block as little-endian
uint32; `empty`, a bit per block, the highest bit of a byte first, 1 if the whole block is 0 and
need not be read; `foreground`, (n, 4) little-endian uint16, the value of a label and the position
of a voxel with this label; `check`, the CRC-32C of the first part; `voxels`.

The voxels are in blocks of 16 × 16 × 16, in C order of the blocks; the volume is padded with 0 to
whole blocks. A block has the channels, (16, 16, 16, C) little-endian float16, then the labels, if
there are any, (16, 16, 16) uint8.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import google_crc32c
import numpy as np

from gigatile.records.example import encode_example
from gigatile.records.shuffle import key64, random64

SCHEMA = 1
# The side of a block. With smaller blocks, reading a patch reads fewer other voxels, but in shorter
# pieces.
BLOCK = 16
# Largest number of voxels per label in the head. Patches are centred on them.
FOREGROUND = 2048
# Largest size of the voxels: a protobuf message has up to 2 GiB, and shards append to records.
LARGEST = 2**31 - 2**20
# -0 of float16, which is written as +0, so that all bits of a zero are 0.
_MINUS_0 = 1 << 15
# The bits of float16 that are all set in infinities and NaN.
_INFINITE = 0x7C00


def encode_volume(
    case: str,
    image: np.ndarray,
    labels: np.ndarray | None,
    channels: Sequence[str],
    grid: Mapping[str, object],
) -> bytearray:
    """Return a case as a serialised tf.train.Example; equal input gives equal bytes.

    Args:
        case: the case's id.
        image: (x, y, z, C) float16, finite; voxels outside the head are 0 in every channel.
        labels: (x, y, z) uint8, 0 background; None: the case has no segmentation.
        channels: their names.
        grid: what is needed to return to the grid of the original files, as JSON values. `spacing`
            is the spacing of the voxels in mm; without it they are assumed to be cubes.

    Raises:
        ValueError: the arrays have different shapes, a value is not finite, or there are too many
            voxels for a record.
    """
    _check_arrays(image, labels, channels)
    inside, ranges = _inside(image)
    head = {
        "schema": SCHEMA,
        "channels": list(channels),
        "shape": list(image.shape[:3]),
        "block": BLOCK,
        "labelled": labels is not None,
        "inside": inside,
        "ranges": ranges,
        "grid": dict(grid),
    }
    blocks = int(np.prod(blocks_of(image.shape[:3])))
    size = blocks * block_bytes_of(len(channels), labels is not None)
    features: dict[str, bytes | str | float | int] = {
        "case": case,
        "head": json.dumps(head, ensure_ascii=False, allow_nan=False),
        "crcs": bytes(4 * blocks),
        "empty": bytes(-(-blocks // 8)),
        "foreground": _foreground(labels).tobytes(),
    }

    def start() -> bytes:
        """Return the record up to the voxels."""
        first = encode_example(features)
        return b"".join((first, check_of(first), before_voxels(size)))

    # Write the voxels to their final position, since a copy would need twice the memory. The
    # checksums, which come first, have a fixed length.
    begin = len(start())
    record = bytearray(begin + size)
    voxels = np.frombuffer(record, np.uint8, offset=begin).reshape(blocks, -1)
    _write_blocks(image, labels, voxels)
    features["crcs"] = np.array([google_crc32c.value(block) for block in voxels], "<u4").tobytes()
    features["empty"] = np.packbits(~voxels.any(axis=1)).tobytes()
    record[:begin] = start()
    return record


def _check_arrays(image: np.ndarray, labels: np.ndarray | None, channels: Sequence[str]) -> None:
    shape = image.shape[:3]
    if image.ndim != 4 or image.dtype != np.float16 or image.shape[3] != len(channels):
        raise ValueError(
            f"image: {image.shape} {image.dtype}; must be (x, y, z, {len(channels)}) float16"
        )
    if labels is not None and (labels.shape != shape or labels.dtype != np.uint8):
        raise ValueError(f"labels: {labels.shape} {labels.dtype}; must be {shape} uint8")
    if not channels or not all(0 < side < 2**16 for side in shape):
        raise ValueError(f"image: {image.shape}; must have a channel and sides of 1-65535 voxels")
    size = int(np.prod(blocks_of(shape), dtype=np.int64)) * block_bytes_of(
        len(channels), labels is not None
    )
    if size > LARGEST:
        raise ValueError(
            f"image: {image.shape} is {size} bytes; the limit of a record is {LARGEST}"
        )


def _inside(image: np.ndarray) -> tuple[int, list[list[float]]]:
    """Return the number of voxels that are not 0 in some channel, and the range of each channel.

    The ranges are of the nonzero values. To save 80 % of the time, the bits of float16 are compared
    as integers: the largest int16 is the maximum, the largest uint16 the minimum if it is negative.

    Raises:
        ValueError: a value is not finite.
    """
    inside, channels = 0, image.shape[3]
    ends = np.zeros((2, channels), np.uint16)
    for plane in image:
        nonzero = np.zeros(plane.shape[:2], bool)
        for channel in range(channels):
            bits = np.ascontiguousarray(plane[..., channel]).view(np.uint16)
            largest = bits.max(), max(bits.view(np.int16).max(), 0)
            ends[:, channel] = np.maximum(ends[:, channel], np.array(largest, np.uint16))
            nonzero |= bits << 1 != 0
        inside += int(np.count_nonzero(nonzero))
    if (ends & _INFINITE == _INFINITE).any():
        raise ValueError("image: has values that are not finite")
    ranges = ends.view(np.float16).astype(np.float32).T.tolist()
    for channel, (lowest, highest) in enumerate(ranges):
        if not lowest < 0 < highest:  # 0 is not between them
            values = image[..., channel]
            values = values[values != 0].astype(np.float32)
            ranges[channel] = (
                [float(values.min()), float(values.max())] if values.size else [0.0, 0.0]
            )
    return inside, ranges


def blocks_of(shape: Sequence[int]) -> tuple[int, int, int]:
    """Return the number of blocks of a volume along each axis."""
    x, y, z = (-(-side // BLOCK) for side in shape)
    return x, y, z


def block_bytes_of(channels: int, labelled: bool) -> int:
    """Return the size of a block in bytes."""
    return BLOCK**3 * (2 * channels + labelled)


def _write_blocks(image: np.ndarray, labels: np.ndarray | None, blocks: np.ndarray) -> None:
    """Write the voxels to `blocks`, (blocks, bytes of a block) uint8, in the order of a record."""
    nx, ny, nz = blocks_of(image.shape[:3])
    channels = image.shape[3]
    grid = blocks.reshape(nx, ny, nz, -1)
    parts: list[tuple[np.ndarray, np.dtype[Any], int, int]] = [
        (image, np.dtype("<f2"), channels, 0)
    ]
    if labels is not None:
        parts.append((labels[..., None], np.dtype(np.uint8), 1, BLOCK**3 * 2 * channels))
    for array, kind, values, begin in parts:
        slab = np.zeros((BLOCK, ny * BLOCK, nz * BLOCK, values), kind)
        _, height, depth, _ = array.shape
        end = begin + BLOCK**3 * values * kind.itemsize
        for number in range(nx):
            planes = array[number * BLOCK : (number + 1) * BLOCK]
            slab[: len(planes), :height, :depth] = planes
            slab[len(planes) :] = 0
            if kind.itemsize == 2:
                bits = slab.view(np.uint16)
                bits[bits == _MINUS_0] = 0
            ordered = slab.reshape(BLOCK, ny, BLOCK, nz, BLOCK, values).transpose(1, 3, 0, 2, 4, 5)
            grid[number, :, :, begin:end] = (
                np.ascontiguousarray(ordered).view(np.uint8).reshape(ny, nz, end - begin)
            )


def _foreground(labels: np.ndarray | None) -> np.ndarray:
    """Return value and position of voxels of each label: (n, 4) uint16, sorted by both."""
    if labels is None:
        return np.empty((0, 4), "<u2")
    rows = [np.empty((0, 4), "<u2")]
    flat = labels.reshape(-1)
    for value in np.flatnonzero(np.bincount(flat, minlength=256)[1:]) + 1:
        positions = np.flatnonzero(flat == value)
        if len(positions) > FOREGROUND:
            # All random numbers differ, so the choice does not depend on their order.
            random = random64(key64("foreground", int(value)), positions)
            positions = np.sort(positions[np.argpartition(random, FOREGROUND)[:FOREGROUND]])
        x, y, z = np.unravel_index(positions, labels.shape)
        rows.append(np.stack([np.full(len(positions), value), x, y, z], axis=1).astype("<u2"))
    return np.concatenate(rows)


def check_of(first: bytes) -> bytes:
    """Return the second part of a record: the checksum of the first."""
    return encode_example({"check": google_crc32c.value(first).to_bytes(4, "little")})


def before_voxels(size: int) -> bytes:
    """Return the tags and lengths before `size` bytes of voxels in the third part of a record."""
    # An Example with a single feature, built from its value outwards.
    inner = _field(1, size)
    feature = _field(1, len(inner) + size) + inner
    name = _field(1, len(b"voxels")) + b"voxels"
    entry = name + _field(2, len(feature) + size) + feature
    features = _field(1, len(entry) + size) + entry
    return _field(1, len(features) + size) + features


def _field(number: int, length: int) -> bytes:
    """Return the tag and length of a protobuf field of bytes."""
    encoded = bytearray([number << 3 | 2])
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)
