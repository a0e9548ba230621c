"""Reads records one by one, and finds slides or cases with the same pixels.

A copy of an image can have another name, another patient and other bytes at the end of its file. So
the pixels are compared, by a hash of 64 bits: a few bytes of each record stay in memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from gigatile.records.files import DiskFile, RecordFile
from gigatile.records.parts import span_of
from gigatile.records.tfrecord import record_offsets, size_at
from gigatile.report.inputs import CohortRow

# Hash of an image, index of its slide or case, offset of its record in the file.
HASHES = np.dtype([("hash", "<u8"), ("member", "<u4"), ("offset", "<i8")])


@dataclass(frozen=True)
class Record:
    """One record.

    Attributes:
        id: the slide or case that the record names.
        data: the serialised record.
        images: the pixels of each image: one for a tile, one for each channel of a case.
        labels: the voxels of the segmentation; empty: it is not compared.
    """

    id: str
    data: bytes
    images: Sequence[bytes]
    labels: bytes = b""


# Arguments: the open file, offset and size of the record in bytes.
ReadRecord = Callable[[RecordFile, int, int], Record]


@dataclass(frozen=True)
class RecordKind:
    """What the records of a task contain.

    Attributes:
        record, image: nouns for a record and for one of its images.
        read: reads a record.
        is_plain: returns whether an image has so little content that two slides can have the same
            one by chance; None: no image has.
        segmented: whether records have a segmentation.
    """

    record: str
    image: str
    read: ReadRecord
    is_plain: Callable[[bytes], bool] | None = None
    segmented: bool = False


def records_file(row: CohortRow, folder: Path) -> Path:
    """Return the file with the records of a slide, case or image."""
    return folder / f"{row.file}.tfrecord"


def iterate_records(row: CohortRow, folder: Path, kind: RecordKind) -> Iterator[tuple[int, Record]]:
    """Yield the offset and the content of each record of a slide, case or image.

    Raises:
        UserError: the file is missing or damaged.
    """
    path = records_file(row, folder)
    if row.file == row.id:
        offsets = record_offsets(path)
        end = path.stat().st_size
    else:
        begin, size = span_of(folder, row.file, row.id)
        end = begin + size
        offsets = record_offsets(path, begin, end)
    with DiskFile(path) as file:
        ends = [*offsets[1:].tolist(), end]
        for offset, end in zip(offsets.tolist(), ends, strict=True):
            yield offset, kind.read(file, offset, end - offset)


def read_record(path: Path, offset: int, kind: RecordKind) -> Record:
    """Return the record at an offset of a file."""
    with DiskFile(path) as file:
        return kind.read(file, offset, size_at(file, offset))


def hash_of(pixels: bytes) -> int:
    """Return a hash of 64 bits."""
    return int.from_bytes(blake2b(pixels, digest_size=16).digest()[:8], "little")


def same_hashes(hashes: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the entries of each hash that occurs more than once.

    Args:
        hashes: (n,) HASHES.
    """
    hashes = hashes[np.argsort(hashes["hash"], kind="stable")]
    begins = np.flatnonzero(np.r_[True, hashes["hash"][1:] != hashes["hash"][:-1]])
    lengths = np.diff(np.r_[begins, len(hashes)]) if len(hashes) else np.empty(0, int)
    repeated = lengths > 1
    for begin, length in zip(begins[repeated].tolist(), lengths[repeated].tolist(), strict=True):
        yield hashes[begin : begin + length]
