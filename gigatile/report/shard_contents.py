"""What the shards hold, read record by record, and compared with the cohort's table and records.

A manifest can be edited, and so can a table; what was trained on are the records. So every record
of every shard is read, through the index as training does, and every record of the cohort. Of each
record a few bytes stay in memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import numpy as np

from gigatile.errors import UserError
from gigatile.files import read_json, sha256_of
from gigatile.records.example import some_bytes
from gigatile.records.shards import ShardReader
from gigatile.records.tfrecord import damaged, read_at, read_sized, record_offsets
from gigatile.records.tile import decode_jpeg, encode_whose, image_of
from gigatile.records.volume import VolumeRecord

# A picture of fewer colours, as of glass, a scanner's filling or a straight edge between such,
# can be equal on two slides by chance. Tissue and a sensor's noise have hundreds.
FEWEST_COLOURS = 64
# The pixels of a record: their hash, the number of its slide or case, where it begins in its file.
_PIXELS = np.dtype([("hash", "<u8"), ("member", "<u4"), ("offset", "<i8")])
_MODULUS = 1 << 128


class Member(Protocol):
    """A row of the cohort's table."""

    @property
    def id(self) -> str:
        """The slide or case."""

    @property
    def patient(self) -> str:
        """Whose it is."""

    @property
    def split(self) -> str:
        """Where it stands."""

    @property
    def sha256(self) -> str:
        """Of its own records."""


@dataclass(frozen=True)
class Record:
    """One record: the id that it tells, its bytes, and the bytes of its pixels."""

    id: str
    data: bytes
    pixels: bytes


# From a descriptor, the record's offset and size in bytes, and the file's path.
ReadRecord = Callable[[int, int, int, Path], Record]


def read_tile(descriptor: int, offset: int, size: int, path: Path) -> Record:
    """Read a tile; its pixels are the JPEG, as one encoder wrote all of them."""
    data = read_sized(descriptor, offset, size, path)
    try:
        slide, image = some_bytes(data, "slide", "image")
        return Record(slide.decode(), data, image)
    except ValueError as error:
        raise damaged(path, offset, f"no tile's ({error})") from None


def read_volume(descriptor: int, offset: int, size: int, path: Path) -> Record:
    """Read a case; its pixels are the voxels of its images, without the labels."""
    data = read_sized(descriptor, offset, size, path)
    volume = VolumeRecord(descriptor, offset, size, path)
    image, _ = volume.read((0, 0, 0), volume.head.shape)
    return Record(volume.head.case, data, image.tobytes())


@dataclass
class _Sum:
    """How many records, and the sum of their digests: their order has no part in it."""

    records: int = 0
    digests: int = 0

    def add(self, record: Record, data: bytes) -> int:
        """Take up a record whose own bytes are `data`; return a hash of its pixels."""
        pixels = blake2b(record.pixels, digest_size=16).digest()
        digest = blake2b(data, digest_size=16).digest()
        self.records += 1
        self.digests = (self.digests + int.from_bytes(digest, "little")) % _MODULUS
        return int.from_bytes(pixels[:8], "little")


@dataclass(frozen=True)
class Contents:
    """What was found.

    Attributes:
        faults: where the shards, the records and the table say different things.
        shared: slides or cases of different splits with the same pixels.
        records, pixels: how many records of shards were read, and pictures compared.
    """

    faults: list[str] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    records: int = 0
    pixels: int = 0


def read_contents(
    manifest: Path, folder: Path, members: Sequence[Member], read: ReadRecord, unit: str
) -> Contents:
    """Read all shards of a manifest and all records of a cohort, and compare them.

    Args:
        manifest: of the shards.
        folder: of the cohort's records, <id>.tfrecord.
        members: the rows of the table that have records.
        read: reads one record.
        unit: `slide` or `case`.

    A file that is missing or damaged is a fault of the shards, and told as such.
    """
    own, pixels, faults = _read_own(folder, members, read)
    shards, count, more = _read_shards(manifest, members, read, unit)
    faults += more
    rows = {one.id: one for one in members}
    for split in ("train", "valid"):
        found = shards.get(split, {})
        for name in sorted(found.keys() | {one.id for one in members if one.split == split}):
            row, there, wanted = rows.get(name), found.get(name), own.get(name)
            if row is None:
                faults.append(f"{split}: {name} is in the shards and not in the cohort")
            elif row.split != split:
                faults.append(f"{split}: {name} is in the shards and is a {unit} of {row.split}")
            elif wanted is None:
                continue  # its records could not be read, which was told
            elif there is None:
                if wanted.records:
                    faults.append(f"{split}: {name} is not in the shards")
            elif there.records != wanted.records:
                faults.append(
                    f"{split}: {name} has {there.records} records in the shards and "
                    f"{wanted.records} of its own"
                )
            elif there != wanted:
                faults.append(f"{split}: {name} has other content in the shards than of its own")
    for split in sorted(shards.keys() - {"train", "valid"}):
        faults.append(f"{split} is in the shards")
    return Contents(faults, _shared(pixels, members, folder, read), count, len(pixels))


def _read_own(
    folder: Path, members: Sequence[Member], read: ReadRecord
) -> tuple[dict[str, _Sum], np.ndarray, list[str]]:
    sums: dict[str, _Sum] = {}
    faults: list[str] = []
    parts = [np.empty(0, _PIXELS)]
    for number, one in enumerate(members):
        path, found, rows = folder / f"{one.id}.tfrecord", _Sum(), []
        try:
            for offset, record in _records(path, read):
                if record.id != one.id:
                    raise damaged(path, offset, f"it is of {record.id!r}")
                rows.append((found.add(record, record.data), number, offset))
            if sha256_of(path) != one.sha256:
                faults.append(f"{one.split}: {one.id} has other records than the table tells")
        except UserError as error:
            faults.append(f"{one.split}: {one.id}: {_without_folders(error, path)}")
            continue
        tiles = getattr(one, "tiles", found.records)
        if tiles != found.records:
            faults.append(
                f"{one.split}: {one.id} has {tiles} tiles in the table and {found.records} records"
            )
        sums[one.id] = found
        parts.append(np.array(rows, _PIXELS))
    return sums, np.concatenate(parts), faults


def _records(path: Path, read: ReadRecord) -> Iterator[tuple[int, Record]]:
    offsets = record_offsets(path)
    with path.open("rb", buffering=0) as handle:
        ends = [*offsets[1:].tolist(), path.stat().st_size]
        for offset, end in zip(offsets.tolist(), ends, strict=True):
            yield offset, read(handle.fileno(), offset, end - offset, path)


def _read_shards(
    manifest: Path, members: Sequence[Member], read: ReadRecord, unit: str
) -> tuple[dict[str, dict[str, _Sum]], int, list[str]]:
    rows = {one.id: one for one in members}
    whose = {one.id: encode_whose(one.patient, getattr(one, "label", "")) for one in members}
    sums: dict[str, dict[str, _Sum]] = {}
    described, faults, count = read_json(manifest), [], 0
    for split, part in described["splits"].items():
        if not part["shards"]:
            faults.append(f"{split}: the manifest names no shard")
            continue
        found = sums.setdefault(split, {})
        others, indexed = set(), set()
        try:
            reader = ShardReader(manifest, split)
        except (UserError, KeyError, ValueError, IndexError) as error:
            faults.append(f"{split}: {_without_folders(error, manifest)}")
            continue
        try:
            for shard in part["shards"]:
                path = manifest.parent / shard["file"]
                if sha256_of(path) != shard["sha256"]:
                    faults.append(f"{split}: {path.name} is another file than the manifest tells")
            classes = reader.classes_at(np.arange(len(reader))).tolist()
            for number, index in enumerate(classes):
                record = read(*reader.place(number))
                data = record.data
                if record.id in rows:
                    # What was appended for the shard; see `encode_whose`.
                    data = data.removesuffix(whose[record.id])
                    if len(data) == len(record.data):
                        others.add(record.id)
                    label = getattr(rows[record.id], "label", "")
                    if label and (index >= len(reader.classes) or reader.classes[index] != label):
                        indexed.add(record.id)
                found.setdefault(record.id, _Sum()).add(record, data)
                count += 1
            if part["records"] != len(reader):
                faults.append(f"{split}: {part['records']} records told, {len(reader)} found")
        except UserError as error:
            faults.append(f"{split}: {_without_folders(error, manifest)}")
        finally:
            reader.close()
        told = "patient" if unit == "case" else "patient or label"
        faults += [f"{split}: {name} has another {told} in the shards" for name in sorted(others)]
        faults += [f"{split}: {name} has another label in the index" for name in sorted(indexed)]
    return sums, count, faults


def _shared(
    pixels: np.ndarray, members: Sequence[Member], folder: Path, read: ReadRecord
) -> list[str]:
    """Return which of different splits have equal pixels, and how many."""
    pixels = pixels[np.argsort(pixels["hash"], kind="stable")]
    begins = np.flatnonzero(np.r_[True, pixels["hash"][1:] != pixels["hash"][:-1]])
    found: dict[tuple[int, int], int] = {}
    # All but those that occur twice are left out at once.
    lengths = np.diff(np.r_[begins, len(pixels)]) if len(pixels) else np.empty(0, int)
    for begin, length in zip(
        begins[lengths > 1].tolist(), lengths[lengths > 1].tolist(), strict=True
    ):
        same = pixels[begin : begin + length]
        mine = sorted(set(same["member"].tolist()))
        if len({members[one].split for one in mine}) < 2:
            continue
        first = same[0]
        path = folder / f"{members[first['member']].id}.tfrecord"
        if read is read_tile and _is_plain(path, int(first["offset"])):
            continue
        # The first of each split stands for it: of many, all pairs would be too many to tell.
        for split in sorted({members[one].split for one in mine} - {members[mine[0]].split}):
            other = next(one for one in mine if members[one].split == split)
            found[mine[0], other] = found.get((mine[0], other), 0) + 1
    return [
        f"{members[one].id} ({members[one].split}) = {members[two].id} ({members[two].split}), "
        f"{count} equal"
        for (one, two), count in sorted(found.items())
    ]


def _is_plain(path: Path, offset: int) -> bool:
    """Return whether a tile has so few colours that another slide may have the same."""
    with path.open("rb", buffering=0) as handle:
        image = image_of(read_at(handle.fileno(), offset, path))
    try:
        colours = decode_jpeg(image).reshape(-1, 3)
    except ValueError:
        return False
    return len(np.unique(colours, axis=0)) < FEWEST_COLOURS


def _without_folders(error: Exception, path: Path) -> str:
    return str(error).replace(f"{path.parent}/", "")
