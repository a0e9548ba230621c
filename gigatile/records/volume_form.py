"""How a case becomes a record of which any box of voxels is read without the rest.

A record is a tf.train.Example in three parts, which are read as one because messages that follow
each other are (https://protobuf.dev/programming-guides/encoding/#last-one-wins): the head, a check
of the head, and the voxels. Where the voxels begin follows from the length of the head, which
stands in front of it.

Features, all of bytes: `case`; `head`, JSON; `crcs`, of each block the CRC-32C as little-endian
uint32; `empty`, of each block a bit, the highest of a byte first, 1 where all of the block is 0 and
need not be read; `foreground`, (n, 4) little-endian uint16, the value of a label and the place of a
voxel that has it; `check`, the CRC-32C of the first part; `voxels`.

Voxels stand in blocks of 16 × 16 × 16, in C order of the blocks; the volume is filled up with 0 to
whole blocks. A block is its channels, (16, 16, 16, C) little-endian float16, and after them, where
there are any, its labels, (16, 16, 16) uint8.
"""

import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import google_crc32c
import numpy as np

from gigatile.records.example import encode_example
from gigatile.records.shuffle import key64, random64

SCHEMA = 1
# The side of a block. Smaller ones: less is read beside a patch, but in shorter pieces.
BLOCK = 16
# Voxels of each label whose places stand in the head: patches are centred on them.
FOREGROUND = 2048
# What a message of protobuf can hold, less some room for what shards append.
LARGEST = 2**31 - 2**20
# The other zero of float16: written as 0, so that what is 0 is so in all its bits.
_MINUS_0 = 1 << 15
# The bits of float16 that are all set in what is infinite or no number.
_INFINITE = 0x7C00


def encode_volume(
    case: str,
    image: np.ndarray,
    labels: np.ndarray | None,
    channels: Sequence[str],
    grid: dict[str, Any],
) -> bytes:
    """Return a case as a serialised tf.train.Example; equal input gives equal bytes.

    Args:
        case: whose it is.
        image: (x, y, z, C) float16, finite; voxels outside the head are 0 in every channel.
        labels: (x, y, z) uint8, 0 background; None: the case has no segmentation.
        channels: their names.
        grid: what is needed to go back to the original files, of what JSON can hold. Its `spacing`
            is that of the voxels, in mm; without it they are taken to be cubes.

    Raises:
        ValueError: the arrays do not fit each other, a value is not finite, or there are more
            voxels than a record can hold.
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
        "grid": grid,
    }
    number_of_blocks = np.prod(blocks_of(image.shape[:3]))
    crcs, empty = np.zeros(number_of_blocks, "<u4"), np.zeros(number_of_blocks, np.bool_)
    foreground = _foreground(labels)
    prefix = before_voxels(len(crcs) * block_bytes_of(image.shape[3], labels is not None))
    # Joining the parts would hold the voxels once more: the place of the first is left free, and
    # `getvalue` gives out the buffer itself.
    begin = len(_first(case, head, crcs, empty, foreground)) + len(check_of(b"")) + len(prefix)
    record = io.BytesIO()
    record.write(bytes(begin))
    number = 0
    for blocks in _in_blocks(image, labels):
        for block in blocks:
            crcs[number], empty[number] = google_crc32c.value(block), not block.any()
            number += 1
        record.write(blocks.data)
    first = _first(case, head, crcs, empty, foreground)
    record.seek(0)
    record.write(b"".join((first, check_of(first), prefix)))
    return record.getvalue()


def _first(
    case: str, head: dict[str, Any], crcs: np.ndarray, empty: np.ndarray, foreground: np.ndarray
) -> bytes:
    """Return the first part of a record; its length depends on the numbers of `crcs` only."""
    return encode_example(
        {
            "case": case,
            "head": json.dumps(head, ensure_ascii=False, allow_nan=False),
            "crcs": crcs.tobytes(),
            "empty": np.packbits(empty).tobytes(),
            "foreground": foreground.tobytes(),
        }
    )


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
        raise ValueError(f"image: {image.shape} is {size} bytes; a record holds {LARGEST}")


def _inside(image: np.ndarray) -> tuple[int, list[list[float]]]:
    """Return how many voxels are not 0 in every channel, and each channel's range without 0.

    Bits of float16 are compared as integers, which takes a fifth of the time: as int16 the largest
    is the largest positive number, as uint16 it is the lowest negative one.

    Raises:
        ValueError: a value is not finite.
    """
    inside, channels = 0, image.shape[3]
    ends = np.zeros((2, channels), np.uint16)
    for plane in image:
        shown = np.zeros(plane.shape[:2], bool)
        for channel in range(channels):
            bits = np.ascontiguousarray(plane[..., channel]).view(np.uint16)
            largest = bits.max(), max(bits.view(np.int16).max(), 0)
            ends[:, channel] = np.maximum(ends[:, channel], np.array(largest, np.uint16))
            shown |= bits << 1 != 0
        inside += int(np.count_nonzero(shown))
    if (ends & _INFINITE == _INFINITE).any():
        raise ValueError("image: has values that are not finite")
    ranges = ends.view(np.float16).astype(np.float32).T.tolist()
    for channel, (lowest, highest) in enumerate(ranges):
        if not lowest < 0 < highest:  # no 0 lies between them
            values = image[..., channel]
            values = values[values != 0].astype(np.float32)
            ranges[channel] = (
                [float(values.min()), float(values.max())] if values.size else [0.0, 0.0]
            )
    return inside, ranges


def blocks_of(shape: Sequence[int]) -> tuple[int, int, int]:
    """Return how many blocks a volume has along each axis."""
    x, y, z = (-(-side // BLOCK) for side in shape)
    return x, y, z


def block_bytes_of(channels: int, labelled: bool) -> int:
    """Return the bytes of a block."""
    return BLOCK**3 * (2 * channels + labelled)


def _in_blocks(image: np.ndarray, labels: np.ndarray | None) -> Iterator[np.ndarray]:
    """Yield some blocks at a time in the order of a record: (n, bytes of a block) uint8."""
    nx, ny, nz = blocks_of(image.shape[:3])
    _, height, depth, channels = image.shape
    arrays: list[tuple[np.ndarray, np.dtype[Any]]] = [(image, np.dtype("<f2"))]
    if labels is not None:
        arrays.append((labels[..., None], np.dtype(np.uint8)))
    slabs = [
        np.zeros((BLOCK, ny * BLOCK, nz * BLOCK, array.shape[3]), kind) for array, kind in arrays
    ]
    blocks = np.empty((ny * nz, block_bytes_of(channels, labels is not None)), np.uint8)
    for number in range(nx):
        begin = 0
        for (array, kind), slab in zip(arrays, slabs, strict=True):
            planes = array[number * BLOCK : (number + 1) * BLOCK]
            slab[: len(planes), :height, :depth] = planes
            slab[len(planes) :] = 0
            if kind.itemsize == 2:
                bits = slab.view(np.uint16)
                bits[bits == _MINUS_0] = 0
            cut = slab.reshape(BLOCK, ny, BLOCK, nz, BLOCK, -1).transpose(1, 3, 0, 2, 4, 5)
            rows = np.ascontiguousarray(cut).view(np.uint8).reshape(ny * nz, -1)
            blocks[:, begin : begin + rows.shape[1]] = rows
            begin += rows.shape[1]
        yield blocks


def _foreground(labels: np.ndarray | None) -> np.ndarray:
    """Return the places of voxels of each label: (n, 4) uint16, in the order of their places."""
    if labels is None:
        return np.empty((0, 4), "<u2")
    rows = [np.empty((0, 4), "<u2")]
    flat = labels.reshape(-1)
    for value in np.flatnonzero(np.bincount(flat, minlength=256)[1:]) + 1:
        places = np.flatnonzero(flat == value)
        if len(places) > FOREGROUND:
            # No two counters have the same number, so which are chosen is no matter of their order.
            random = random64(key64("foreground", int(value)), places)
            places = np.sort(places[np.argpartition(random, FOREGROUND)[:FOREGROUND]])
        x, y, z = np.unravel_index(places, labels.shape)
        rows.append(np.stack([np.full(len(places), value), x, y, z], axis=1).astype("<u2"))
    return np.concatenate(rows)


def check_of(first: bytes) -> bytes:
    """Return the second part of a record: the check of the first."""
    return encode_example({"check": google_crc32c.value(first).to_bytes(4, "little")})


def before_voxels(size: int) -> bytes:
    """Return what stands before `size` bytes of voxels in the third part of a record."""
    # An Example of one feature, from its value outwards.
    inner = _field(1, size)
    feature = _field(1, len(inner) + size) + inner
    name = _field(1, len(b"voxels")) + b"voxels"
    entry = name + _field(2, len(feature) + size) + feature
    features = _field(1, len(entry) + size) + entry
    return _field(1, len(features) + size) + features


def _field(number: int, length: int) -> bytes:
    """Return the tag and length of a protobuf field of bytes."""
    found = bytearray([number << 3 | 2])
    while length > 0x7F:
        found.append(length & 0x7F | 0x80)
        length >>= 7
    found.append(length)
    return bytes(found)
