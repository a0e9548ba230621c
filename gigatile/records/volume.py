"""The volume record, read by boxes of voxels; `volume_form.py` says how it is made."""

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

from gigatile.records.example import decode_example
from gigatile.records.tfrecord import FOOTER, HEADER, RecordError, damaged, length_of
from gigatile.records.volume_form import (
    BLOCK,
    SCHEMA,
    before_voxels,
    block_bytes_of,
    blocks_of,
    check_of,
)

# What is read of a record to get its head: all of it, unless there are many labels.
_BEGINNING = 1 << 17
# Blocks are read, checked and laid out in pieces of about so many bytes.
_PIECE = 1 << 20
# Each thread reads into memory of its own, again and again: new memory is slow.
_MINE = threading.local()


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
        return block_bytes_of(len(self.channels), self.labelled)


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
        check = check_of(first)
        if not rest.startswith(check):
            raise self.damaged("the checksum of its head does not fit")
        self.head = self._decode(first)
        voxels = self.head.crcs.size * self.head.block_bytes
        names = before_voxels(voxels)
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
            blocks = blocks_of((x, y, z))
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
        bottom, top = low[2] // BLOCK, -(-high[2] // BLOCK)
        # So many blocks from back to front at a time.
        at_once = max(1, _PIECE // ((top - bottom) * head.block_bytes))
        for x in range(low[0] // BLOCK, -(-high[0] // BLOCK)):
            for y in range(low[1] // BLOCK, -(-high[1] // BLOCK), at_once):
                first = (x * BLOCK, y * BLOCK, bottom * BLOCK)
                end = (first[0] + BLOCK, (y + at_once) * BLOCK, top * BLOCK)
                part = [*map(max, first, low)], [*map(min, end, high)]
                blocks = self._blocks(x, y, -(-part[1][1] // BLOCK), bottom, top)
                within, to = (
                    [slice(m - n, o - n) for m, n, o in zip(part[0], origin, part[1], strict=True)]
                    for origin in (first, start)
                )
                for target in targets:
                    target.take(blocks, within, to)

    def _blocks(self, x: int, y: int, y_end: int, z: int, z_end: int) -> np.ndarray:
        """Return checked blocks: (y_end - y, z_end - z, bytes of a block) uint8.

        They are gone when the thread reads the next.
        """
        size = self.head.block_bytes
        _, rows, columns = self.head.crcs.shape
        needed = (y_end - y) * (z_end - z) * size
        found = _own_memory("blocks", needed).reshape(y_end - y, z_end - z, size)
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

    def take(self, blocks: np.ndarray, within: Sequence[slice], to: Sequence[slice]) -> None:
        """Take what lies `within` some blocks, (y, z, bytes), to its place."""
        rows, columns, _ = blocks.shape
        width = self.width
        own = blocks[:, :, self.begin : self.begin + BLOCK**3 * width]
        # What lies together in a column of a block is copied as one thing, first into whole columns
        # that caches hold: copying the parts of blocks right to their places takes longer.
        thing = np.dtype((np.void, BLOCK * width))
        things = own.reshape(rows, columns, BLOCK, BLOCK, -1).view(thing)[..., 0]
        laid = _own_memory("laid", own.size).view(thing).reshape(BLOCK, rows, BLOCK, columns)
        laid[within[0]] = things[:, :, within[0]].transpose(2, 0, 3, 1)
        whole = laid.view(np.uint8).reshape(BLOCK, rows * BLOCK, -1)
        up = slice(within[2].start * width, within[2].stop * width)
        target = slice(to[2].start * width, to[2].stop * width)
        self.columns[to[0], to[1], target] = whole[within[0], within[1], up]


def _own_memory(name: str, size: int) -> np.ndarray:
    """Return bytes that belong to this thread, their content by chance."""
    memory: np.ndarray | None = getattr(_MINE, name, None)
    if memory is None or len(memory) < size:
        memory = np.empty(size, np.uint8)
        setattr(_MINE, name, memory)
    return memory[:size]


def _check_target(array: np.ndarray, shape: tuple[int, ...], kind: np.dtype[Any]) -> None:
    if array.shape != shape or array.dtype != kind or not array[0, 0].flags.c_contiguous:
        raise ValueError(
            f"{array.shape} {array.dtype}; must be {shape} {kind}, the last axes contiguous"
        )


def _end_of_first(data: bytes) -> int:
    """Return where the first part of a record ends; wherever that is, its check is made."""
    length = shift = 0
    for place, byte in enumerate(data[1:11], 2):
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return place + length
    return 0
