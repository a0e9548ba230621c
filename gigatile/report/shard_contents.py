"""What the shards hold, read record by record, and compared with the cohort's table and records.

A manifest can be edited, and so can a table; what was trained on are the records. So every record
of every shard is read, through the index as training does, and every record of the cohort. Of each
record a few bytes stay in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np

from gigatile.errors import UserError
from gigatile.files import sha256_of
from gigatile.records.manifest import read_manifest
from gigatile.records.shards import ShardReader
from gigatile.records.tfrecord import damaged, read_at
from gigatile.records.tile import encode_sheet_fields, image_of
from gigatile.report.inputs import CohortRow
from gigatile.report.records import (
    HASHES,
    ReadRecord,
    hash_of,
    is_plain,
    read_tile,
    records_of,
    same_hashes,
)

_MODULUS = 1 << 128


@dataclass
class _Sum:
    """Number of records, and the sum of their digests, which does not depend on their order."""

    records: int = 0
    digests: int = 0

    def add(self, data: bytes) -> None:
        """Add a record."""
        digest = blake2b(data, digest_size=16).digest()
        self.records += 1
        self.digests = (self.digests + int.from_bytes(digest, "little")) % _MODULUS


@dataclass(frozen=True)
class Contents:
    """What was found.

    Attributes:
        faults: where the shards, the records and the table say different things.
        shared: slides or cases of different splits with the same pixels.
        labels_shared: cases of different splits with the same segmentation.
        records, images, labels: numbers of shard records read, and of images and segmentations
            compared.
    """

    faults: list[str] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    labels_shared: list[str] = field(default_factory=list)
    records: int = 0
    images: int = 0
    labels: int = 0


def read_contents(
    manifest: Path, folder: Path, members: Sequence[CohortRow], read: ReadRecord, unit: str
) -> Contents:
    """Read all shards of a manifest and all records of a cohort, and compare them.

    Args:
        manifest: of the shards.
        folder: of the cohort's records, <id>.tfrecord.
        members: the rows of the table that have records.
        read: reads one record.
        unit: `slide` or `case`.

    A missing or damaged file is reported as a fault of the shards.
    """
    own, images, labels, faults = _read_own(folder, members, read)
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
                continue  # its records could not be read, which is a fault already
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
    return Contents(
        faults,
        _shared(images, members, folder if read is read_tile else None),
        _shared(labels, members),
        count,
        len(images),
        len(labels),
    )


def _read_own(
    folder: Path, members: Sequence[CohortRow], read: ReadRecord
) -> tuple[dict[str, _Sum], np.ndarray, np.ndarray, list[str]]:
    """Return the sums of the cohort's records, hashes of images and of labels, and faults."""
    sums: dict[str, _Sum] = {}
    faults: list[str] = []
    images, labels = [np.empty(0, HASHES)], [np.empty(0, HASHES)]
    for number, one in enumerate(members):
        path, found = folder / f"{one.id}.tfrecord", _Sum()
        of_images, of_labels = [], []
        try:
            for offset, record in records_of(path, read):
                if record.id != one.id:
                    raise damaged(path, offset, f"it is of {record.id!r}")
                found.add(record.data)
                of_images += [(hash_of(image), number, offset) for image in record.images]
                if record.labels:
                    of_labels.append((hash_of(record.labels), number, offset))
            if sha256_of(path) != one.sha256:
                faults.append(f"{one.split}: {one.id} has other records than the table states")
        except UserError as error:
            faults.append(f"{one.split}: {one.id}: {_without_folders(error, path)}")
            continue
        tiles = getattr(one, "tiles", found.records)
        if tiles != found.records:
            faults.append(
                f"{one.split}: {one.id} has {tiles} tiles in the table and {found.records} records"
            )
        sums[one.id] = found
        images.append(np.array(of_images, HASHES))
        labels.append(np.array(of_labels, HASHES))
    return sums, np.concatenate(images), np.concatenate(labels), faults


def _read_shards(
    manifest: Path, members: Sequence[CohortRow], read: ReadRecord, unit: str
) -> tuple[dict[str, dict[str, _Sum]], int, list[str]]:
    rows = {one.id: one for one in members}
    whose = {one.id: encode_sheet_fields(one.patient, getattr(one, "label", "")) for one in members}
    sums: dict[str, dict[str, _Sum]] = {}
    content, faults, count = read_manifest(manifest), [], 0
    for split, part in content.splits.items():
        if not part.shards:
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
            for shard in part.shards:
                path = manifest.parent / shard.file
                if sha256_of(path) != shard.sha256:
                    faults.append(f"{split}: {path.name} is not the file that the manifest names")
            classes = reader.classes_at(np.arange(len(reader))).tolist()
            for number, index in enumerate(classes):
                record = read(*reader.locate(number))
                data = record.data
                if record.id in rows:
                    # What was appended for the shard; see `encode_sheet_fields`.
                    data = data.removesuffix(whose[record.id])
                    if len(data) == len(record.data):
                        others.add(record.id)
                    label = getattr(rows[record.id], "label", "")
                    if label and (index >= len(reader.classes) or reader.classes[index] != label):
                        indexed.add(record.id)
                found.setdefault(record.id, _Sum()).add(data)
                count += 1
            if part.records != len(reader):
                faults.append(
                    f"{split}: {part.records} records in the manifest, {len(reader)} in the file"
                )
        except UserError as error:
            faults.append(f"{split}: {_without_folders(error, manifest)}")
        finally:
            reader.close()
        attribute = "patient" if unit == "case" else "patient or label"
        faults += [
            f"{split}: {name} has another {attribute} in the shards" for name in sorted(others)
        ]
        faults += [f"{split}: {name} has another label in the index" for name in sorted(indexed)]
    return sums, count, faults


def _shared(
    hashes: np.ndarray, members: Sequence[CohortRow], tiles: Path | None = None
) -> list[str]:
    """Return the members of different splits with equal hashes, and the number of these hashes.

    Args:
        hashes: (n,) HASHES.
        members: the slides or cases, by their index in `hashes`.
        tiles: the folder of the records if they are tiles: plain tiles do not count.
    """
    found: dict[tuple[int, int], int] = {}
    for same in same_hashes(hashes):
        mine = sorted(set(same["member"].tolist()))
        if len({members[one].split for one in mine}) < 2:
            continue
        if tiles is not None:
            path = tiles / f"{members[same[0]['member']].id}.tfrecord"
            with path.open("rb", buffering=0) as handle:
                if is_plain(image_of(read_at(handle.fileno(), int(same[0]["offset"]), path))):
                    continue
        # Only the first of each split: all pairs of many equal ones would be too many to list.
        for split in sorted({members[one].split for one in mine} - {members[mine[0]].split}):
            other = next(one for one in mine if members[one].split == split)
            found[mine[0], other] = found.get((mine[0], other), 0) + 1
    return [
        f"{members[one].id} ({members[one].split}) = {members[two].id} ({members[two].split}), "
        f"{count} equal"
        for (one, two), count in sorted(found.items())
    ]


def _without_folders(error: Exception, path: Path) -> str:
    return str(error).replace(f"{path.parent}/", "")
