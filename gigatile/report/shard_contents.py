"""Compares the records in the shards with the table and the records of the cohort.

Manifest and table can be edited; the model was trained on the records. So every record of every
shard is read, through the index as in training, and every record of the cohort. A few bytes of each
record stay in memory.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np

from gigatile.errors import UserError
from gigatile.files import sha256_of
from gigatile.records.manifest import Shard, read_manifest
from gigatile.records.shards import ShardReader
from gigatile.records.tfrecord import damaged
from gigatile.records.tile import encode_sheet_fields
from gigatile.report.inputs import CohortRow
from gigatile.report.records import (
    HASHES,
    RecordKind,
    hash_of,
    iterate_records,
    read_record,
    records_file,
    same_hashes,
)

_MODULUS = 1 << 128


@dataclass
class _Sum:
    """The number of records and the sum of their digests, in any order."""

    records: int = 0
    digests: int = 0

    def add(self, data: bytes) -> None:
        """Add a record."""
        digest = blake2b(data, digest_size=16).digest()
        self.records += 1
        self.digests = (self.digests + int.from_bytes(digest, "little")) % _MODULUS


@dataclass(frozen=True)
class Contents:
    """The result of the comparison.

    Attributes:
        faults: contradictions between shards, records and table.
        shared: slides or cases of different splits with the same pixels.
        labels_shared: cases of different splits with the same segmentation.
        records, images, labels: numbers of shard records read, and of images and segmentations
            compared.
        known: slides or cases of valid and test with pixels of the known images.
    """

    faults: list[str] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    labels_shared: list[str] = field(default_factory=list)
    records: int = 0
    images: int = 0
    labels: int = 0
    known: list[str] = field(default_factory=list)


def read_contents(
    manifest: Path,
    folder: Path,
    rows: Sequence[CohortRow],
    kind: RecordKind,
    unit: str,
    known: np.ndarray | None = None,
) -> Contents:
    """Read all shards of a manifest and all records of a cohort, and compare them.

    Args:
        manifest: of the shards.
        folder: of the cohort's records, <id>.tfrecord.
        rows: of the table, without the slides or cases that have no records.
        kind: what a record contains.
        unit: `slide` or `case`.
        known: (n,) uint64, hashes of images that no slide or case of valid and test may have.

    A missing or damaged file is reported as a fault of the shards.
    """
    originals, images, labels, faults = _read_originals(folder, rows, kind)
    shards, count, shard_faults = _read_shards(manifest, rows, kind)
    faults += shard_faults
    by_id = {row.id: row for row in rows}
    for split in ("train", "valid"):
        in_shards = shards.get(split, {})
        for name in sorted(in_shards.keys() | {row.id for row in rows if row.split == split}):
            if name not in by_id:
                faults.append(f"{split}: {name} is in the shards and not in the cohort")
            elif (actual := by_id[name].split) != split:
                faults.append(f"{split}: {name} is in the shards and is a {unit} of {actual}")
            elif name in originals:  # otherwise the records are damaged, which is a fault already
                fault = _difference(in_shards.get(name), originals[name])
                faults += [f"{split}: {name} {fault}"] if fault else []
    for split in sorted(shards.keys() - {"train", "valid"}):
        faults.append(f"{split} is in the shards")
    return Contents(
        faults,
        _shared(images, rows, folder, kind),
        _shared(labels, rows),
        count,
        len(images),
        len(labels),
        [] if known is None else _known(images, rows, known),
    )


def _difference(shard: _Sum | None, original: _Sum) -> str:
    if shard is None:
        return "is not in the shards" if original.records else ""
    if shard.records != original.records:
        return f"has {shard.records} records in the shards, but {original.records} in its own file"
    return "" if shard == original else "has different content in the shards and in its own file"


def _read_originals(
    folder: Path, rows: Sequence[CohortRow], kind: RecordKind
) -> tuple[dict[str, _Sum], np.ndarray, np.ndarray, list[str]]:
    """Return the sums of the cohort's records, hashes of images and of labels, and faults."""
    sums: dict[str, _Sum] = {}
    faults: list[str] = []
    images, labels = [np.empty(0, HASHES)], [np.empty(0, HASHES)]
    for number, row in enumerate(rows):
        path, total = records_file(row, folder), _Sum()
        image_hashes, label_hashes = [], []
        content = hashlib.sha256()
        try:
            for offset, record in iterate_records(row, folder, kind):
                if record.id != row.id:
                    raise damaged(path, offset, f"it is of {record.id!r}")
                total.add(record.data)
                content.update(record.data)
                image_hashes += [(hash_of(image), number, offset) for image in record.images]
                if record.labels:
                    label_hashes.append((hash_of(record.labels), number, offset))
            # Of an image that shares its file with others, the checksum is that of its records.
            sha256 = sha256_of(path) if row.file == row.id else content.hexdigest()
            if sha256 != row.sha256:
                faults.append(f"{row.split}: {row.id} has other records than the table states")
        except UserError as error:
            faults.append(f"{row.split}: {row.id}: {_without_folders(error, path)}")
            continue
        if row.records != total.records:
            faults.append(
                f"{row.split}: {row.id} has {row.records} {kind.record}s in the table, but "
                f"{total.records} records"
            )
        sums[row.id] = total
        images.append(np.array(image_hashes, HASHES))
        labels.append(np.array(label_hashes, HASHES))
    return sums, np.concatenate(images), np.concatenate(labels), faults


def _read_shards(
    manifest: Path, rows: Sequence[CohortRow], kind: RecordKind
) -> tuple[dict[str, dict[str, _Sum]], int, list[str]]:
    """Return the sums of the shards' records by split and id, their number, and faults."""
    by_id = {row.id: row for row in rows}
    sums: dict[str, dict[str, _Sum]] = {}
    faults: list[str] = []
    for split, part in read_manifest(manifest).splits.items():
        if not part.shards:
            faults.append(f"{split}: the manifest names no shard")
            continue
        split_sums = sums.setdefault(split, {})
        try:
            reader = ShardReader(manifest, split)
        except (UserError, KeyError, ValueError, IndexError) as error:
            faults.append(f"{split}: {_without_folders(error, manifest)}")
            continue
        try:
            _add_records(reader, split, part.shards, by_id, kind, split_sums, faults)
            if part.records != len(reader):
                faults.append(
                    f"{split}: {part.records} records in the manifest, {len(reader)} in the file"
                )
        except UserError as error:
            faults.append(f"{split}: {_without_folders(error, manifest)}")
        finally:
            reader.close()
    count = sum(total.records for split_sums in sums.values() for total in split_sums.values())
    return sums, count, faults


def _add_records(
    reader: ShardReader,
    split: str,
    shards: Sequence[Shard],
    rows: Mapping[str, CohortRow],
    kind: RecordKind,
    sums: dict[str, _Sum],
    faults: list[str],
) -> None:
    """Add the records of a split to `sums`, and slides or cases with other fields to `faults`."""
    fields = {name: encode_sheet_fields(row.patient, row.label) for name, row in rows.items()}
    other_fields, other_labels = set(), set()
    classes = reader.classes_at(np.arange(len(reader))).tolist()

    def numbers() -> Iterator[int]:
        # Shard by shard, so that one in a store is fetched once for its checksum and its records.
        for position, shard in enumerate(shards):
            if reader.sha256_of(position) != shard.sha256:
                name = shard.file.rpartition("/")[2]
                faults.append(f"{split}: {name} is not the file that the manifest names")
            yield from reader.records_of(position)

    try:
        for number in numbers():
            index, record = classes[number], kind.read(*reader.locate(number))
            data = record.data
            if record.id in rows:
                # Patient and label are appended in the shard.
                data = data.removesuffix(fields[record.id])
                if len(data) == len(record.data):
                    other_fields.add(record.id)
                label = rows[record.id].label
                if label and (index >= len(reader.classes) or reader.classes[index] != label):
                    other_labels.add(record.id)
            sums.setdefault(record.id, _Sum()).add(data)
    finally:
        labelled = any(row.label for row in rows.values())
        attributes = "patient or label" if labelled else "patient"
        faults += [
            f"{split}: {name} has another {attributes} in the shards"
            for name in sorted(other_fields)
        ]
        faults += [
            f"{split}: {name} has another label in the index" for name in sorted(other_labels)
        ]


def _shared(
    hashes: np.ndarray,
    rows: Sequence[CohortRow],
    folder: Path | None = None,
    kind: RecordKind | None = None,
) -> list[str]:
    """Return the slides or cases of different splits with equal hashes, and how many are equal.

    Args:
        hashes: (n,) HASHES.
        rows: of the slides or cases, by their index in `hashes`.
        folder, kind: of the records; plain images do not count.
    """
    counts: dict[tuple[int, int], int] = {}
    for same in same_hashes(hashes):
        members = sorted(set(same["member"].tolist()))
        if len({rows[member].split for member in members}) < 2:
            continue
        if folder and kind and kind.is_plain:
            path = records_file(rows[same[0]["member"]], folder)
            images = read_record(path, int(same[0]["offset"]), kind).images
            if any(hash_of(image) == same[0]["hash"] and kind.is_plain(image) for image in images):
                continue
        # Only the first of each split: all pairs of many equal ones would be too many to list.
        first = members[0]
        for split in sorted({rows[member].split for member in members} - {rows[first].split}):
            other = next(member for member in members if rows[member].split == split)
            counts[first, other] = counts.get((first, other), 0) + 1
    return [
        f"{rows[a].id} ({rows[a].split}) = {rows[b].id} ({rows[b].split}), {count} equal"
        for (a, b), count in sorted(counts.items())
    ]


def _known(hashes: np.ndarray, rows: Sequence[CohortRow], known: np.ndarray) -> list[str]:
    """Return the slides or cases of valid and test with known images, and how many."""
    members, counts = np.unique(
        hashes["member"][np.isin(hashes["hash"], known)], return_counts=True
    )
    return [
        f"{rows[member].id} ({rows[member].split}), {count} equal"
        for member, count in zip(members.tolist(), counts.tolist(), strict=True)
        if rows[member].split != "train"
    ]


def _without_folders(error: Exception, path: Path) -> str:
    return str(error).replace(f"{path.parent}/", "")
