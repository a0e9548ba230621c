"""The TFRecord container: length, CRC of the length, data, CRC of the data.

Format: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details. All
numbers are little-endian; the CRC is CRC-32C, rotated and offset so that a CRC of data that holds
CRCs stays meaningful.
"""

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import google_crc32c
import numpy as np

from gigatile.errors import UserError
from gigatile.files import write_whole

HEADER = struct.Struct("<QI")  # length of the data, its masked CRC
FOOTER = struct.Struct("<I")  # masked CRC of the data
_LENGTH = struct.Struct("<Q")


class RecordError(UserError):
    """A record file is damaged; the message names the file, the record and the byte."""


def frame(data: bytes) -> bytes:
    """Return one record as it stands in a file."""
    return b"".join(_framed(data))


def _framed(data: bytes) -> tuple[bytes, ...]:
    length = _LENGTH.pack(len(data))
    return length, FOOTER.pack(_masked_crc(length)), data, FOOTER.pack(_masked_crc(data))


def write_records(path: Path, records: Iterable[bytes]) -> int:
    """Write records to `path`, whole or not at all; return how many."""
    count = 0
    with write_whole(path) as temporary, temporary.open("wb") as handle:
        for count, data in enumerate(records, 1):  # noqa: B007 - the last number is the result
            # Not joined by `frame`: a volume would be in memory twice.
            handle.writelines(_framed(data))
    return count


def read_records(path: Path) -> Iterator[bytes]:
    """Yield the data of each record; both CRCs are checked.

    Raises:
        RecordError: the file is truncated, or a bit in it has changed.
    """
    with _open(path) as handle:
        offset = 0
        while header := handle.read(HEADER.size):
            length = length_of(header, path, offset)
            yield _checked(handle.read(length + FOOTER.size), length, path, offset)
            offset += HEADER.size + length + FOOTER.size


def read_at(descriptor: int, offset: int, path: Path) -> bytes:
    """Return the data of the record that begins at byte `offset`, both CRCs checked.

    The file's own position is neither used nor moved, so threads can share a descriptor.
    """
    length = length_of(os.pread(descriptor, HEADER.size, offset), path, offset)
    body = os.pread(descriptor, length + FOOTER.size, offset + HEADER.size)
    return _checked(body, length, path, offset)


def read_sized(descriptor: int, offset: int, size: int, path: Path) -> bytes:
    """Return the data of the record that an index says fills `size` bytes from `offset` on.

    As `read_at`, with one read in place of two.
    """
    found = os.pread(descriptor, size, offset)
    length = length_of(found[: HEADER.size], path, offset)
    if HEADER.size + length + FOOTER.size != size:
        raise damaged(path, offset, f"it has not the {size} bytes that the index says")
    return _checked(found[HEADER.size :], length, path, offset)


def read_extended(descriptor: int, offset: int, frame: memoryview, more: bytes, path: Path) -> None:
    """Fill `frame` with the record that begins at byte `offset` and `more` after its data.

    Both CRCs are checked, and those of the longer record are put in: it can be written as it is.
    The record must be as long as `frame` without `more`.
    """
    end = len(frame) - len(more)
    if os.preadv(descriptor, (frame[:end],), offset) < end:
        raise damaged(path, offset, "the file ends inside it")
    data = bytes(frame[HEADER.size : end - FOOTER.size])
    if length_of(bytes(frame[: HEADER.size]), path, offset) != len(data):
        raise damaged(path, offset, "its length was another one a moment ago")
    crc = google_crc32c.value(data)
    if FOOTER.unpack(frame[end - FOOTER.size : end])[0] != _mask(crc):
        raise damaged(path, offset, "the checksum of its data does not fit")
    length = _LENGTH.pack(len(data) + len(more))
    frame[: HEADER.size] = length + FOOTER.pack(_masked_crc(length))
    frame[end - FOOTER.size :] = more + FOOTER.pack(_mask(google_crc32c.extend(crc, more)))


def record_offsets(path: Path) -> np.ndarray:
    """Return where each record begins, in bytes: (n,) int64.

    Reads the headers alone; their CRCs are checked, the data's are not.
    """
    offsets = []
    with _open(path) as handle:
        size = handle.seek(0, os.SEEK_END)
        offset = 0
        while offset < size:
            offsets.append(offset)
            header = os.pread(handle.fileno(), HEADER.size, offset)
            offset += HEADER.size + length_of(header, path, offset) + FOOTER.size
    if offset != size:
        raise damaged(path, offsets[-1], "the file ends inside it")
    return np.asarray(offsets, np.int64)


def damaged(path: Path, offset: int, what: str) -> RecordError:
    """Return the error of a damaged record, to be raised; `what` is what is wrong with it."""
    return RecordError(
        f"{path}: the record at byte {offset} is damaged: {what}; delete the file to have it remade"
    )


def _open(path: Path) -> BinaryIO:
    try:
        return Path(path).open("rb")
    except FileNotFoundError:
        raise RecordError(f"{path}: no such record file") from None


def length_of(header: bytes, path: Path, offset: int) -> int:
    """Return the bytes of a record's data, as its header tells, whose CRC is checked."""
    if len(header) < HEADER.size:
        raise damaged(path, offset, "the file ends inside its header")
    length, crc = HEADER.unpack(header)
    if crc != _masked_crc(header[: _LENGTH.size]):
        raise damaged(path, offset, "the checksum of its length does not fit")
    return length


def _checked(body: bytes, length: int, path: Path, offset: int) -> bytes:
    if len(body) < length + FOOTER.size:
        raise damaged(path, offset, "the file ends inside it")
    data = body[:length]
    if FOOTER.unpack_from(body, length)[0] != _masked_crc(data):
        raise damaged(path, offset, "the checksum of its data does not fit")
    return data


def _masked_crc(data: bytes) -> int:
    return _mask(google_crc32c.value(data))


def _mask(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
