"""Read boxes of voxels from a volume record. `volume_form.py` defines the record."""

import json
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

from gigatile.records.example import some_bytes
from gigatile.records.files import RecordFile
from gigatile.records.tfrecord import FOOTER, HEADER, RecordError, damaged, length_of
from gigatile.records.volume_form import (
    BLOCK,
    SCHEMA,
    before_voxels,
    block_bytes_of,
    blocks_of,
    check_of,
)

# Bytes of the first read, which contain the whole head unless there are many labels.
FIRST_READ = 1 << 17
# Blocks are read, checked and copied in pieces of about this size, in bytes.
_PIECE = 1 << 20
# Buffers of each thread, which are reused: allocating memory is slow.
_BUFFERS = threading.local()


@dataclass(frozen=True)
class VolumeHead:
    """A record without its voxels.

    Attributes:
        case: the case's id.
        channels: their names.
        shape: number of voxels from left to right, from back to front, and from bottom to top.
        labelled: whether there are labels.
        inside: number of voxels that are not 0 in some channel.
        ranges: (C, 2) float32, minimum and maximum of the nonzero values of each channel; 0 and 0
            if there are none.
        grid: the grid of the case, as in `encode_volume`.
        spacing: millimetres between voxels along each axis; empty if the grid has none.
        foreground: (n, 4) int64: the value of a label, and x, y, z of a voxel with this label;
            sorted by value. Up to `FOREGROUND` voxels per label.
        crcs: (blocks along x, y, z) uint32.
        empty: (blocks along x, y, z) bool: all voxels and labels of the block are 0.
    """

    case: str
    channels: tuple[str, ...]
    shape: tuple[int, int, int]
    labelled: bool
    inside: int
    ranges: np.ndarray
    grid: Mapping[str, object]
    spacing: tuple[float, ...]
    foreground: np.ndarray
    crcs: np.ndarray
    empty: np.ndarray

    @property
    def block_bytes(self) -> int:
        """The size of a block."""
        return block_bytes_of(len(self.channels), self.labelled)


class VolumeRecord:
    """A record in an open file. Several threads may read from it.

    Attributes:
        file: the open file.
        head: everything except the voxels.
    """

    def __init__(self, file: RecordFile, offset: int, size: int) -> None:
        """Read the head.

        Args:
            file: the open file.
            offset: of the record, in bytes.
            size: of the record with its lengths and CRCs, in bytes, from an index.

        Raises:
            RecordError: the checksum of the length or the head does not fit, the record has another
                size, or it is not a volume.
        """
        self.file, self._offset, self._path = file, offset, file.path
        start = file.read(offset, min(size, FIRST_READ))
        length = length_of(start[: HEADER.size], self._path, offset)
        if HEADER.size + length + FOOTER.size != size:
            raise self.damaged(f"its size is not the {size} bytes of the index")
        end = HEADER.size + _end_of_first(start[HEADER.size :])
        # The first part is followed by its check, and by tags and lengths before the voxels.
        needed = min(size, end + 128)
        if needed > len(start):
            start = file.read(offset, needed)
        first, rest = start[HEADER.size : end], start[end:]
        check = check_of(first)
        if not rest.startswith(check):
            raise self.damaged("the checksum of its head does not fit")
        self.head = self._decode(first)
        voxels = self.head.crcs.size * self.head.block_bytes
        tags = before_voxels(voxels)
        if not rest.startswith(tags, len(check)):
            raise self.damaged("the number of its voxels is not that of its head")
        self._begin = offset + end + len(check) + len(tags)
        if self._begin + voxels + FOOTER.size > offset + size:
            raise self.damaged("it ends before its last voxel")

    @property
    def case(self) -> str:
        """The case's id."""
        return self.head.case

    @property
    def channels(self) -> tuple[str, ...]:
        """Their names."""
        return self.head.channels

    @property
    def shape(self) -> tuple[int, int, int]:
        """The number of voxels along each axis."""
        return self.head.shape

    def damaged(self, fault: str) -> RecordError:
        """Return an error that names the file and offset of the record, and its fault."""
        return damaged(self._path, self._offset, fault)

    def _decode(self, first: bytes) -> VolumeHead:
        try:
            names = ("case", "head", "crcs", "empty", "foreground")
            case, head_json, crcs, empty, foreground = some_bytes(first, *names)
            head = json.loads(head_json)
            if (head["schema"], head["block"]) != (SCHEMA, BLOCK):
                raise RecordError(
                    f"{self._path}: volumes of schema {head['schema']}, expected {SCHEMA}; delete "
                    "the file and run again"
                )
            x, y, z = head["shape"]
            blocks = blocks_of((x, y, z))
            bits = np.unpackbits(np.frombuffer(empty, np.uint8), count=math.prod(blocks))
            return VolumeHead(
                case=case.decode(),
                channels=tuple(head["channels"]),
                shape=(x, y, z),
                labelled=head["labelled"],
                inside=head["inside"],
                ranges=np.array(head["ranges"], np.float32),
                grid=head["grid"],
                spacing=tuple(head["grid"].get("spacing", ())),
                foreground=np.frombuffer(foreground, "<u2").reshape(-1, 4).astype(np.int64),
                crcs=np.frombuffer(crcs, "<u4").reshape(blocks),
                empty=bits.reshape(blocks).astype(bool),
            )
        except (KeyError, ValueError) as error:
            raise self.damaged(f"it is not a volume ({error!r})") from None

    def read(self, start: Sequence[int], size: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the voxels and labels of a box; outside the volume both are 0.

        Args:
            start: the first voxel, which may be outside.
            size: number of voxels along each axis.

        Returns:
            (*size, C) float16, and (*size) uint8, all 0 if the case has no segmentation.

        Raises:
            RecordError: the checksum of a block does not fit, or the file ends inside one.
        """
        image = np.empty((*size, len(self.head.channels)), np.float16)
        labels = np.empty(tuple(size), np.uint8)
        self.read_into(start, image, labels)
        return image, labels

    def read_image(self, start: Sequence[int], size: Sequence[int]) -> np.ndarray:
        """Return the voxels of a box without labels; see `read`."""
        image = np.empty((*size, len(self.head.channels)), np.float16)
        self.read_into(start, image, None)
        return image

    def read_into(self, start: Sequence[int], image: np.ndarray, labels: np.ndarray | None) -> None:
        """Read the voxels and labels of a box into existing arrays of its size.

        Args:
            start: the first voxel, which may be outside.
            image: (x, y, z, C) float16. The last two axes must be contiguous; the others may have
                any strides, such as those of `image[::-1, ::-1]`.
            labels: (x, y, z) uint8, its last axis contiguous; None: labels are not read.

        Raises:
            RecordError: the checksum of a block does not fit, or the file ends inside one. The
                content of the arrays is then undefined.
        """
        head = self.head
        size, channels = image.shape[:3], len(head.channels)
        _check_target(image, (*size, channels), np.dtype(np.float16))
        # As bytes, image and labels are copied by the same code.
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
        if self.file.in_store:
            self.file.fetch(self.ranges(start, size))
        bottom, top = low[2] // BLOCK, -(-high[2] // BLOCK)
        # Number of blocks from back to front per read.
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

    def ranges(self, start: Sequence[int], size: Sequence[int]) -> list[tuple[int, int]]:
        """Return the parts of the file that `read` reads for a box: begin and end in bytes."""
        counts = self.head.crcs.shape
        low = [
            min(max(0, first), BLOCK * n) // BLOCK for first, n in zip(start, counts, strict=True)
        ]
        high = [
            min(n, -(-max(0, first + side) // BLOCK))
            for first, side, n in zip(start, size, counts, strict=True)
        ]
        return [
            (self._position(x, y, low[2] + first), self._position(x, y, low[2] + last))
            for x in range(low[0], high[0])
            for y in range(low[1], high[1])
            for first, last in [self._filled(x, y, low[2], high[2])]
            if first < last
        ]

    def _filled(self, x: int, y: int, z: int, z_end: int) -> tuple[int, int]:
        """Return the first block of a column that is not empty, counted from z, and the last + 1.

        They are read at once. Both are 0 if all blocks are empty.
        """
        filled = np.flatnonzero(~self.head.empty[x, y, z:z_end])
        return (int(filled[0]), int(filled[-1]) + 1) if len(filled) else (0, 0)

    def _position(self, x: int, y: int, z: int) -> int:
        """Return the byte in the file at which a block starts."""
        _, rows, columns = self.head.crcs.shape
        return self._begin + ((x * rows + y) * columns + z) * self.head.block_bytes

    def _blocks(self, x: int, y: int, y_end: int, z: int, z_end: int) -> np.ndarray:
        """Return checked blocks: (y_end - y, z_end - z, bytes of a block) uint8.

        The next call of the same thread overwrites them.
        """
        size = self.head.block_bytes
        needed = (y_end - y) * (z_end - z) * size
        blocks = _thread_buffer("blocks", needed).reshape(y_end - y, z_end - z, size)
        for number, column in enumerate(blocks):
            first, last = self._filled(x, y + number, z, z_end)
            column[:first] = 0
            column[last:] = 0
            if first == last:
                continue
            read, offset = column[first:last], self._position(x, y + number, z + first)
            if self.file.read_into(read.data, offset) < read.nbytes:
                raise self.damaged("the file ends inside it")
            expected = self.head.crcs[x, y + number, z + first : z + last].tolist()
            if [google_crc32c.value(block) for block in read] != expected:
                raise self.damaged("the checksum of a block of its voxels does not fit")
        return blocks


def case_of(file: RecordFile, offset: int) -> str | None:
    """Return the case of the record at byte `offset`; only its head is read.

    None: the record is not a volume, and has a single part.

    Raises:
        RecordError: the length or the head is damaged.
    """
    start = file.read(offset, HEADER.size + 11)
    length = length_of(start[: HEADER.size], file.path, offset)
    if _end_of_first(start[HEADER.size :]) >= length:
        return None
    return VolumeRecord(file, offset, HEADER.size + length + FOOTER.size).head.case


class _Target(NamedTuple):
    """An array that receives voxels from blocks.

    Attributes:
        columns: (x, y, bytes) uint8.
        begin: offset of these voxels in a block, in bytes.
        width: bytes per voxel.
    """

    columns: np.ndarray
    begin: int
    width: int

    def take(self, blocks: np.ndarray, within: Sequence[slice], to: Sequence[slice]) -> None:
        """Copy the box `within` some blocks, (y, z, bytes), to the box `to` of the array."""
        rows, columns, _ = blocks.shape
        width = self.width
        own = blocks[:, :, self.begin : self.begin + BLOCK**3 * width]
        # Copy each column of a block as one item, first to whole columns in a buffer that fits into
        # the cache. Copying parts of blocks directly to the array takes longer.
        item = np.dtype((np.void, BLOCK * width))
        items = own.reshape(rows, columns, BLOCK, BLOCK, -1).view(item)[..., 0]
        buffer = _thread_buffer("columns", own.size).view(item)
        buffer = buffer.reshape(BLOCK, rows, BLOCK, columns)
        buffer[within[0]] = items[:, :, within[0]].transpose(2, 0, 3, 1)
        whole = buffer.view(np.uint8).reshape(BLOCK, rows * BLOCK, -1)
        up = slice(within[2].start * width, within[2].stop * width)
        target = slice(to[2].start * width, to[2].stop * width)
        self.columns[to[0], to[1], target] = whole[within[0], within[1], up]


def _thread_buffer(name: str, size: int) -> np.ndarray:
    """Return an uninitialised buffer of this thread: (size,) uint8."""
    buffer: np.ndarray | None = getattr(_BUFFERS, name, None)
    if buffer is None or len(buffer) < size:
        buffer = np.empty(size, np.uint8)
        setattr(_BUFFERS, name, buffer)
    return buffer[:size]


def _check_target(array: np.ndarray, shape: tuple[int, ...], kind: np.dtype[Any]) -> None:
    if array.shape != shape or array.dtype != kind or not array[0, 0].flags.c_contiguous:
        raise ValueError(
            f"{array.shape} {array.dtype}; must be {shape} {kind}, the last axes contiguous"
        )


def _end_of_first(data: bytes) -> int:
    """Return the offset at which the first part of a record ends; a damaged length gives any."""
    length = shift = 0
    for position, byte in enumerate(data[1:11], 2):
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return position + length
    return 0
