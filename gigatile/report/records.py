"""Reads records one by one, and finds slides or cases with the same pixels.

Names, patients and the end of a file say nothing about its pixels, so the pixels themselves are
compared, by a hash. Of each record a few bytes stay in memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from gigatile.records.example import some_bytes
from gigatile.records.tfrecord import damaged, read_sized, record_offsets
from gigatile.records.tile import decode_jpeg
from gigatile.records.volume import VolumeRecord

# An image with fewer colours (glass, the fill value of a scanner, a straight edge between them) can
# be the same on two slides by chance. Tissue and sensor noise have hundreds.
FEWEST_COLOURS = 64
# Two small lesions can fill the same voxels by chance.
FEWEST_LABELLED = 64
# Hash of an image, index of its slide or case, offset of its record in the file.
HASHES = np.dtype([("hash", "<u8"), ("member", "<u4"), ("offset", "<i8")])


@dataclass(frozen=True)
class Record:
    """One record.

    Attributes:
        id: the slide or case that the record names.
        data: the serialised record.
        images: the pixels of each of its images: of a tile one, of a case one for each channel.
        labels: the voxels of its segmentation; empty for a tile, and if few voxels have a label.
    """

    id: str
    data: bytes
    images: Sequence[bytes]
    labels: bytes = b""


# Arguments: descriptor, offset and size of the record in bytes, path of the file.
ReadRecord = Callable[[int, int, int, Path], Record]


def read_tile(descriptor: int, offset: int, size: int, path: Path) -> Record:
    """Read a tile. Its pixels are the JPEG: one encoder wrote the JPEGs of all tiles."""
    data = read_sized(descriptor, offset, size, path)
    try:
        slide, image = some_bytes(data, "slide", "image")
        return Record(slide.decode(), data, [image])
    except ValueError as error:
        raise damaged(path, offset, f"not a tile ({error})") from None


def read_volume(descriptor: int, offset: int, size: int, path: Path) -> Record:
    """Read a case. A channel without values (a missing modality) is not one of its images."""
    data = read_sized(descriptor, offset, size, path)
    volume = VolumeRecord(descriptor, offset, size, path)
    image, labels = volume.read((0, 0, 0), volume.head.shape)
    channels = [channel.tobytes() for channel in np.moveaxis(image, -1, 0) if channel.any()]
    labelled = np.count_nonzero(labels) >= FEWEST_LABELLED
    return Record(volume.head.case, data, channels, labels.tobytes() if labelled else b"")


def records_of(path: Path, read: ReadRecord) -> Iterator[tuple[int, Record]]:
    """Yield the offset and the content of each record in a file.

    Raises:
        UserError: the file is missing or damaged.
    """
    offsets = record_offsets(path)
    with path.open("rb", buffering=0) as handle:
        ends = [*offsets[1:].tolist(), path.stat().st_size]
        for offset, end in zip(offsets.tolist(), ends, strict=True):
            yield offset, read(handle.fileno(), offset, end - offset, path)


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


def is_plain(image: bytes) -> bool:
    """Return whether a tile has so few colours that a tile of another slide can be equal."""
    try:
        pixels = decode_jpeg(image).reshape(-1, 3).astype(np.uint32)
    except ValueError:
        return False
    colours = pixels @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    # A few pixels of nearly every tile have enough colours.
    return all(len(np.unique(some)) < FEWEST_COLOURS for some in (colours[::61], colours))
