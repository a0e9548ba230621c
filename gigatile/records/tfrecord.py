"""The TFRecord container: length, CRC of the length, data, CRC of the data.

Format: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details. All
numbers are little-endian. The CRC is a masked CRC-32C: rotated and offset, since the CRC of data
that contain their own CRC says little.
"""

import itertools
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import google_crc32c
import numpy as np

from gigatile.errors import UserError
from gigatile.files import write_whole
from gigatile.records.files import DiskFile, RecordFile

HEADER = struct.Struct("<QI")  # length of the data, its masked CRC
FOOTER = struct.Struct("<I")  # masked CRC of the data
_LENGTH = struct.Struct("<Q")
Buffer = bytes | bytearray


class RecordError(UserError):
    """A record file is damaged; the message names the file and the byte of the record."""


def frame(data: bytes) -> bytes:
    """Return a record with its lengths and CRCs, as it is in a file."""
    return b"".join(_parts(data))


def _parts(data: Buffer) -> tuple[bytes, bytes, Buffer, bytes]:
    length = _LENGTH.pack(len(data))
    return length, FOOTER.pack(_masked_crc(length)), data, FOOTER.pack(_masked_crc(data))


def write_records(path: Path, records: Iterable[Buffer]) -> int:
    """Write records to `path` atomically; return their number."""
    count = 0
    with write_whole(path) as temporary, temporary.open("wb") as handle:
        for count, data in enumerate(records, 1):  # noqa: B007 - the last number is returned
            handle.writelines(_parts(data))  # does not copy the data
    return count


def read_records(path: Path) -> Iterator[bytes]:
    """Yield the data of each record; both CRCs are checked.

    Raises:
        RecordError: the file is truncated, or a bit in it has changed.
    """
    with open_records(path) as file, open(file.descriptor, "rb", closefd=False) as handle:
        offset = 0
        while header := handle.read(HEADER.size):
            length = length_of(header, path, offset)
            yield _checked(handle.read(length + FOOTER.size), length, path, offset)
            offset += HEADER.size + length + FOOTER.size


def read_record_at(path: Path, offset: int) -> bytes:
    """Return the data of the record at a byte of a file; both CRCs are checked."""
    with open_records(path) as file:
        return read_sized(file, offset, size_at(file, offset))


def size_at(file: RecordFile, offset: int) -> int:
    """Return the size of the record at a byte of a file, with lengths and CRCs, in bytes."""
    header = file.read(offset, HEADER.size)
    return HEADER.size + length_of(header, file.path, offset) + FOOTER.size


def read_sized(file: RecordFile, offset: int, size: int) -> bytes:
    """Return the data of a record with the `offset` and `size` of an index; checks both CRCs."""
    return _sized(file.read(offset, size), file.path, offset, size)


def read_consecutive(file: RecordFile, offsets: Sequence[int]) -> Iterator[bytes]:
    """Yield the data of records that follow each other, which are read at once; checks all CRCs.

    Args:
        file: of the records.
        offsets: of each record in bytes, and where the last one ends.
    """
    first = offsets[0]
    block = file.read(first, offsets[-1] - first)
    for begin, end in itertools.pairwise(offsets):
        yield _sized(block[begin - first : end - first], file.path, begin, end - begin)


def _sized(record: bytes, path: Path, offset: int, size: int) -> bytes:
    """Return the data of a record that has the size of an index."""
    length = length_of(record[: HEADER.size], path, offset)
    if HEADER.size + length + FOOTER.size != size:
        raise damaged(path, offset, f"its size is not the {size} bytes of the index")
    return _checked(record[HEADER.size :], length, path, offset)


def read_extended(file: RecordFile, offset: int, frame: memoryview, more: bytes) -> None:
    """Read the record at byte `offset` into `frame`, and append `more` to its data.

    Both CRCs are checked, and replaced by those of the longer record, so that `frame` can be
    written as it is. It must be as long as the record and `more`.
    """
    end, path = len(frame) - len(more), file.path
    if file.read_into(frame[:end], offset) < end:
        raise damaged(path, offset, "the file ends inside it")
    data = bytes(frame[HEADER.size : end - FOOTER.size])
    if length_of(bytes(frame[: HEADER.size]), path, offset) != len(data):
        raise damaged(path, offset, "its length has changed since its header was read")
    crc = google_crc32c.value(data)
    if FOOTER.unpack(frame[end - FOOTER.size : end])[0] != _mask(crc):
        raise damaged(path, offset, "the checksum of its data does not fit")
    length = _LENGTH.pack(len(data) + len(more))
    frame[: HEADER.size] = length + FOOTER.pack(_masked_crc(length))
    frame[end - FOOTER.size :] = more + FOOTER.pack(_mask(google_crc32c.extend(crc, more)))


def record_offsets(path: Path, begin: int = 0, end: int | None = None) -> np.ndarray:
    """Return the offset of each record in bytes: (n,) int64.

    Reads and checks the headers only, not the data.

    Args:
        path: the file.
        begin: of the first record in the file, in bytes.
        end: of the last record; None: the end of the file.
    """
    offsets = []
    with open_records(path) as file:
        size = file.size if end is None else end
        offset = begin
        while offset < size:
            offsets.append(offset)
            offset += size_at(file, offset)
    if offset != size:
        raise damaged(path, offsets[-1] if offsets else begin, "the file ends inside it")
    return np.asarray(offsets, np.int64)


def damaged(path: Path, offset: int, fault: str) -> RecordError:
    """Return the error to raise for a damaged record."""
    return RecordError(
        f"{path}: the record at byte {offset} is damaged: {fault}; delete the file and run again"
    )


def open_records(path: Path) -> DiskFile:
    """Open a file of records on a disk.

    Raises:
        RecordError: there is no such file.
    """
    try:
        return DiskFile(path)
    except FileNotFoundError:
        raise RecordError(f"{path}: no such record file") from None


def length_of(header: bytes, path: Path, offset: int) -> int:
    """Return the length of a record's data from its header; the CRC is checked."""
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


def _masked_crc(data: Buffer) -> int:
    # google_crc32c refuses a bytearray, but accepts an array.
    return _mask(
        google_crc32c.value(data if isinstance(data, bytes) else np.frombuffer(data, "u1"))
    )


def _mask(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
