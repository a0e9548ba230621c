"""The volume record: one case, of which any box of voxels is read without the rest.

A record is a tf.train.Example in three parts, which are read as one because messages that follow
each other are (https://protobuf.dev/programming-guides/encoding/#last-one-wins): the head, a check
of the head, and the voxels. Where the voxels begin follows from the length of the head, which
stands in front of it.

Features: `case` (bytes), `head` (bytes: JSON), `crcs` (bytes: little-endian uint32, the CRC-32C of
each block), `empty` (bytes: a bit for each block, the highest of a byte first; 1: all of it is 0,
and need not be read), `foreground` (bytes: (n, 4) little-endian uint16, the value of a label and the place of
a voxel that has it), `check` (bytes: the CRC-32C of the first part), `voxels` (bytes).

Voxels stand in blocks of 16 × 16 × 16, in C order of the blocks; the volume is filled up with 0 to
whole blocks. A block is its channels, (16, 16, 16, C) little-endian float16, and after them, where
there are any, its labels, (16, 16, 16) uint8.
"""

import json
import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

from gigatile.records.example import decode_example, encode_example
from gigatile.records.shuffle import key64, random64
from gigatile.records.tfrecord import FOOTER, HEADER, RecordError, damaged
from gigatile.records.tfrecord import _length as length_of

SCHEMA = 1
# The side of a block. Smaller ones: less is read beside a patch, but in shorter pieces.
BLOCK = 16
# Voxels of each label whose places stand in the head: patches are centred on them.
FOREGROUND = 2048
# What a message of protobuf can hold, less some room for what shards append.
LARGEST = 2**31 - 2**20
# What is read of a record to get its head: all of it, unless there are many labels.
_BEGINNING = 1 << 17
# Blocks are read, checked and laid out in pieces of about so many bytes.
_PIECE = 1 << 20
# Each thread reads into memory of its own, again and again: new memory is slow.
_MINE = threading.local()


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
    blocks = _in_blocks(image, labels)
    empty = ~blocks.any(axis=1)
    crcs = np.array([google_crc32c.value(block) for block in blocks], "<u4")
    first = encode_example(
        {
            "case": case,
            "head": json.dumps(head, ensure_ascii=False, allow_nan=False),
            "crcs": crcs.tobytes(),
            "empty": np.packbits(empty).tobytes(),
            "foreground": _foreground(labels).tobytes(),
        }
    )
    return b"".join((first, _check(first), _before_voxels(blocks.size), blocks.data))


@dataclass(frozen=True)
class VolumeHead:
    """What a record says of its case, without the voxels.

    Attributes:
        case: whose it is.
        channels: their names.
        shape: voxels from left to right, from back to front, and upwards.
        labelled: whether there are labels.
        inside: voxels that are not 0 in every channel.
        ranges: (C, 2) float32, the least and the largest of each channel's values that are not 0;
            0 and 0 where all are.
        grid: what the writer gave to go back to the original files.
        foreground: (n, 4) int64: the value of a label, and x, y, z of a voxel that has it; sorted
            by the value. Up to `FOREGROUND` of each label that occurs.
        crcs: (blocks along x, y, z) uint32.
        empty: (blocks along x, y, z) bool; all voxels are 0 and have no label.
    """

    case: str
    channels: tuple[str, ...]
    shape: tuple[int, int, int]
    labelled: bool
    inside: int
    ranges: np.ndarray
    grid: dict[str, Any]
    foreground: np.ndarray
    crcs: np.ndarray
    empty: np.ndarray

    @property
    def block_bytes(self) -> int:
        """What a block takes."""
        return _block_bytes(len(self.channels), self.labelled)


class VolumeRecord:
    """One record in a file, of which boxes are read.

    Attributes:
        head: what it says of its case.

    Safe to read from several threads; the file's own position is neither used nor moved.
    """

    def __init__(self, descriptor: int, offset: int, size: int, path: Path) -> None:
        """Read the head.

        Args:
            descriptor: the open file.
            offset: where the record begins in it.
            size: bytes that the index says the record fills, with its frame.
            path: of the file, for messages.

        Raises:
            RecordError: the length or the head does not fit its checksum, the record has another
                size, or it is no volume's.
        """
        self._descriptor, self._offset, self._path = descriptor, offset, Path(path)
        found = os.pread(descriptor, min(size, _BEGINNING), offset)
        length = length_of(found[: HEADER.size], self._path, offset)
        if HEADER.size + length + FOOTER.size != size:
            raise self.damaged(f"it has not the {size} bytes that the index says")
        end = HEADER.size + _end_of_first(found[HEADER.size :])
        # After the first part stand the check and the names before the voxels.
        wanted = min(size, end + 128)
        if wanted > len(found):
            found = os.pread(descriptor, wanted, offset)
        first, rest = found[HEADER.size : end], found[end:]
        check = _check(first)
        if not rest.startswith(check):
            raise self.damaged("the checksum of its head does not fit")
        self.head = self._decode(first)
        voxels = self.head.crcs.size * self.head.block_bytes
        names = _before_voxels(voxels)
        if not rest.startswith(names, len(check)):
            raise self.damaged("its voxels are not as many as its head says")
        self._begin = offset + end + len(check) + len(names)
        if self._begin + voxels + FOOTER.size > offset + size:
            raise self.damaged("it ends before its voxels do")

    def damaged(self, what: str) -> RecordError:
        """Return an error to be raised that names where the record stands, and what is wrong."""
        return damaged(self._path, self._offset, what)

    def _decode(self, first: bytes) -> VolumeHead:
        try:
            features: dict[str, Any] = decode_example(first)
            head = json.loads(features["head"])
            if (head["schema"], head["block"]) != (SCHEMA, BLOCK):
                raise RecordError(
                    f"{self._path}: volumes of schema {head['schema']} where {SCHEMA} is read; "
                    "delete the file to have it remade"
                )
            x, y, z = head["shape"]
            blocks = _blocks_of((x, y, z))
            bits = np.unpackbits(
                np.frombuffer(features["empty"], np.uint8), count=math.prod(blocks)
            )
            places = np.frombuffer(features["foreground"], "<u2").reshape(-1, 4)
            return VolumeHead(
                case=features["case"].decode(),
                channels=tuple(head["channels"]),
                shape=(x, y, z),
                labelled=head["labelled"],
                inside=head["inside"],
                ranges=np.array(head["ranges"], np.float32),
                grid=head["grid"],
                foreground=places.astype(np.int64),
                crcs=np.frombuffer(features["crcs"], "<u4").reshape(blocks),
                empty=bits.reshape(blocks).astype(bool),
            )
        except (KeyError, ValueError) as error:
            raise self.damaged(f"it is no volume's ({error!r})") from None

    def read(self, start: Sequence[int], size: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the voxels of a box; what of it lies outside the volume is 0.

        Args:
            start: the first voxel, which may lie outside.
            size: voxels along each axis.

        Returns:
            (*size, C) float16, and (*size) uint8, all 0 where the case has no segmentation.

        Raises:
            RecordError: a block does not fit its checksum, or the file ends inside one.
        """
        image = np.empty((*size, len(self.head.channels)), np.float16)
        labels = np.empty(tuple(size), np.uint8)
        self.read_into(start, image, labels)
        return image, labels

    def read_into(self, start: Sequence[int], image: np.ndarray, labels: np.ndarray | None) -> None:
        """As `read`, into arrays that are there; their shape is the size of the box.

        Args:
            start: the first voxel, which may lie outside.
            image: (x, y, z, C) float16. The voxels of a column, upwards, must lie beside each
                other; the columns may lie anywhere, as those of `image[::-1, ::-1]` do.
            labels: (x, y, z) uint8, as `image`; None: not wanted.

        Raises:
            RecordError: a block does not fit its checksum, or the file ends inside one. What is in
                the arrays then is nothing.
        """
        head = self.head
        size, channels = image.shape[:3], len(head.channels)
        _check_target(image, (*size, channels), np.dtype(np.float16))
        # As bytes, a column is one row: with channels or without, the copying is the same.
        targets = [_Target(image.reshape(*size[:2], -1).view(np.uint8), 0, 2 * channels)]
        if labels is not None:
            _check_target(labels, size, np.dtype(np.uint8))
            if head.labelled:
                targets.append(_Target(labels, BLOCK**3 * 2 * channels, 1))
            else:
                labels[...] = 0
        low = [max(0, first) for first in start]
        high = [min(a + b, whole) for a, b, whole in zip(start, size, head.shape, strict=True)]
        if any(b - a < side for a, b, side in zip(low, high, size, strict=True)):
            for target in targets:
                target.columns[...] = 0
        if any(b <= a for a, b in zip(low, high, strict=True)):
            return
        ups = _pieces(low[2], high[2], start[2])
        bottom, top = ups[0].block, ups[-1].block + ups[-1].blocks
        # So many blocks from back to front at a time.
        at_once = max(1, _PIECE // ((top - bottom) * head.block_bytes))
        for x in range(low[0] // BLOCK, -(-high[0] // BLOCK)):
            (across,) = _pieces(max(low[0], x * BLOCK), min(high[0], (x + 1) * BLOCK), start[0])
            for y in range(low[1] // BLOCK, -(-high[1] // BLOCK), at_once):
                end = min((y + at_once) * BLOCK, high[1])
                behind = _pieces(max(low[1], y * BLOCK), end, start[1])
                blocks = self._blocks(x, y, -(-end // BLOCK), bottom, top)
                for forth in behind:
                    for up in ups:
                        for target in targets:
                            part = blocks[forth.block - y :, up.block - bottom :]
                            target.take(part, across, forth, up)

    def _blocks(self, x: int, y: int, y_end: int, z: int, z_end: int) -> np.ndarray:
        """Return checked blocks: (y_end - y, z_end - z, bytes of a block) uint8.

        They are gone when the thread reads the next.
        """
        size = self.head.block_bytes
        _, rows, columns = self.head.crcs.shape
        needed = (y_end - y) * (z_end - z) * size
        memory = getattr(_MINE, "memory", None)
        if memory is None or len(memory) < needed:
            _MINE.memory = memory = np.empty(needed, np.uint8)
        found = memory[:needed].reshape(y_end - y, z_end - z, size)
        for number, column in enumerate(found):
            # From the first block of a column that is not empty to the last, in one read.
            filled = np.flatnonzero(~self.head.empty[x, y + number, z:z_end])
            first, last = (int(filled[0]), int(filled[-1]) + 1) if len(filled) else (0, 0)
            column[:first] = 0
            column[last:] = 0
            if first == last:
                continue
            read = column[first:last]
            place = self._begin + ((x * rows + y + number) * columns + z + first) * size
            if os.preadv(self._descriptor, [read.data], place) < read.nbytes:
                raise self.damaged("the file ends inside it")
            expected = self.head.crcs[x, y + number, z + first : z + last].tolist()
            if [google_crc32c.value(block) for block in read] != expected:
                raise self.damaged("the checksum of a block of its voxels does not fit")
        return found


def case_of(descriptor: int, offset: int, path: Path) -> str | None:
    """Return whose volume the record that begins at byte `offset` is; its head alone is read.

    None: it is a record of another kind, which has one part.

    Raises:
        RecordError: the length or the head is damaged.
    """
    found = os.pread(descriptor, HEADER.size + 11, offset)
    length = length_of(found[: HEADER.size], path, offset)
    if _end_of_first(found[HEADER.size :]) >= length:
        return None
    return VolumeRecord(descriptor, offset, HEADER.size + length + FOOTER.size, path).head.case


class _Piece(NamedTuple):
    """Of some blocks along one axis the same part: all of each, or a part of one.

    Attributes:
        block: the first.
        blocks: how many.
        begin, end: what part of each.
        target: where it goes.
    """

    block: int
    blocks: int
    begin: int
    end: int
    target: int


def _pieces(low: int, high: int, start: int) -> list[_Piece]:
    """Return the pieces that make up voxels low … high - 1 of an axis, to go to low - start."""
    found = []
    while low < high:
        block, begin = divmod(low, BLOCK)
        blocks = 1 if begin else max(1, (high - low) // BLOCK)
        end = min(BLOCK, begin + high - low)
        found.append(_Piece(block, blocks, begin, end, low - start))
        low += blocks * (end - begin)
    return found


class _Target(NamedTuple):
    """An array that takes voxels out of blocks.

    Attributes:
        columns: (x, y, bytes) uint8.
        begin: where in a block its voxels begin.
        width: bytes of a voxel.
    """

    columns: np.ndarray
    begin: int
    width: int

    def take(self, blocks: np.ndarray, x: _Piece, y: _Piece, z: _Piece) -> None:
        """Take a part of blocks (y, z, bytes)."""
        width = self.width
        own = blocks[: y.blocks, : z.blocks, self.begin : self.begin + BLOCK**3 * width]
        cube = own.reshape(y.blocks, z.blocks, BLOCK, BLOCK, BLOCK * width)
        high, length = y.end - y.begin, (z.end - z.begin) * width
        # What lies together in a column of a block is copied as one thing.
        thing = np.dtype((np.void, length))
        part = cube[:, :, x.begin : x.end, y.begin : y.end, z.begin * width : z.end * width]
        place = self.columns[
            x.target : x.target + x.end - x.begin,
            y.target : y.target + y.blocks * high,
            z.target * width : z.target * width + z.blocks * length,
        ].reshape(-1, y.blocks, high, z.blocks, length)
        place.view(thing)[..., 0] = part.view(thing)[..., 0].transpose(2, 0, 3, 1)


def _check_target(array: np.ndarray, shape: tuple[int, ...], kind: np.dtype[Any]) -> None:
    if array.shape != shape or array.dtype != kind or not array[0, 0].flags.c_contiguous:
        raise ValueError(
            f"{array.shape} {array.dtype}; must be {shape} {kind}, the last axes contiguous"
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
    size = int(np.prod(_blocks_of(shape), dtype=np.int64)) * _block_bytes(
        len(channels), labels is not None
    )
    if size > LARGEST:
        raise ValueError(f"image: {image.shape} is {size} bytes; a record holds {LARGEST}")
    for plane in image:
        if not np.isfinite(plane).all():
            raise ValueError("image: has values that are not finite")


def _inside(image: np.ndarray) -> tuple[int, list[list[float]]]:
    """Return how many voxels are not 0 in every channel, and each channel's range without 0."""
    inside, channels = 0, image.shape[3]
    ranges = np.array([[np.inf, -np.inf]] * channels, np.float32)
    for plane in image:
        values = plane.astype(np.float32).reshape(-1, channels)
        inside += int(np.count_nonzero(values.any(axis=1)))
        some = values != 0
        ranges[:, 0] = np.minimum(ranges[:, 0], values.min(axis=0, where=some, initial=np.inf))
        ranges[:, 1] = np.maximum(ranges[:, 1], values.max(axis=0, where=some, initial=-np.inf))
    # A channel without any value is all 0.
    ranges[np.isinf(ranges).any(axis=1)] = 0
    return inside, ranges.tolist()


def _blocks_of(shape: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (-(-side // BLOCK) for side in shape)
    return x, y, z


def _block_bytes(channels: int, labelled: bool) -> int:
    return BLOCK**3 * (2 * channels + labelled)


def _in_blocks(image: np.ndarray, labels: np.ndarray | None) -> np.ndarray:
    """Return the voxels in the order of a record: (blocks, bytes of a block) uint8."""
    nx, ny, nz = _blocks_of(image.shape[:3])
    channels = image.shape[3]
    found = np.empty((nx, ny, nz, _block_bytes(channels, labels is not None)), np.uint8)
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
            cut = slab.reshape(BLOCK, ny, BLOCK, nz, BLOCK, values).transpose(1, 3, 0, 2, 4, 5)
            found[number, :, :, begin:end] = (
                np.ascontiguousarray(cut).view(np.uint8).reshape(ny, nz, end - begin)
            )
    return found.reshape(nx * ny * nz, -1)


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


def _check(first: bytes) -> bytes:
    """Return the second part of a record: the check of the first."""
    return encode_example({"check": google_crc32c.value(first).to_bytes(4, "little")})


def _before_voxels(size: int) -> bytes:
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


def _end_of_first(data: bytes) -> int:
    """Return where the first part of a record ends; wherever that is, its check is made."""
    length = shift = 0
    for place, byte in enumerate(data[1:11], 2):
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return place + length
    return 0
