"""Read shards: files with the tiles or volumes of a split, shuffled over all its slides.

They are on a disk or in a store. Everything that is read is checked: an index against its SHA-256,
a record against its CRCs.
"""

import hashlib
import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gigatile.errors import UserError
from gigatile.files import sha256_of
from gigatile.records.example import first_bytes
from gigatile.records.files import DiskFile, RecordFile
from gigatile.records.manifest import Shard, read_manifest
from gigatile.records.tfrecord import RecordError, damaged, read_consecutive, read_sized
from gigatile.records.tile import Tile, decode_tile, image_of
from gigatile.stores.addresses import address_of, is_remote
from gigatile.stores.sources import unreadable

if TYPE_CHECKING:
    from gigatile.stores.cache import Cache

# The index of a shard: for each record its byte offset in the shard, the number of its class, and
# a key of its slide or case and of its patient.
INDEX = np.dtype([("offset", "<i8"), ("label", "<i2"), ("slide", "<u8"), ("patient", "<u8")])
# How much of shards in a store a reader keeps on the disk by default, in GB.
CACHE_GB = 1.0
# Records that follow each other are read together up to this size.
READ_BYTES = 1 << 20
# A shard is hashed in parts of this size.
HASHED_BYTES = 8 << 20
# The index of a shard of whole slides: also the cell of each tile in the grid of its slide.
SLIDE_INDEX = np.dtype([*INDEX.descr, ("column", "<i4"), ("row", "<i4")])


def check_number_of_labels(labels: Sequence[str]) -> None:
    """Refuse more labels than an index can number.

    Raises:
        UserError: there are too many.
    """
    most = np.iinfo(INDEX["label"]).max
    if len(labels) > most:
        raise UserError(f"{len(labels)} different labels or outcomes; at most {most} are possible")


class ShardReader:
    """A split's records as a sequence with random access. It may be used from several threads.

    Attributes:
        classes: the labels in the order of the model's outputs; empty for volumes.
        counts: (shards, classes) int64, the number of records of each class in each shard; one
            column for volumes.
        bytes: the size of all shards.
    """

    def __init__(self, manifest: Path, split: str, cache_gb: float = CACHE_GB) -> None:
        """Open the shards of a split.

        Args:
            manifest: of the shards.
            split: train or valid.
            cache_gb: how much of shards in a store is kept in the temporary folder, in GB.

        Raises:
            UserError: the manifest or one of its files is missing or damaged, the schema is
                another one, or the classes are not those of the records.
            RecordError: the first record of a class in a shard is damaged, or has no label.
        """
        content = read_manifest(manifest)
        if split not in content.splits or not content.splits[split].shards:
            raise UserError(f"{manifest}: has no shards of {split}; delete it and run again")
        self.classes: list[str] = content.classes
        shards = content.splits[split].shards
        self._files, self._cache = open_shards(manifest, shards, cache_gb)
        self._index_paths = [manifest.parent / shard.index for shard in shards]
        indexes: list[np.ndarray] = []
        self.bytes = 0
        for shard in shards:
            entries = np.load(_checked_index(manifest, shard), allow_pickle=False)
            if shard.classes is not None:  # a joined run with other classes
                number_of = {label: number for number, label in enumerate(self.classes)}
                numbers = [number_of[label] for label in shard.classes]
                entries["label"] = np.array(numbers, "<i2")[entries["label"]]
            indexes.append(entries)
            self.bytes += shard.bytes
        self.counts = np.stack(
            [np.bincount(index["label"], minlength=max(1, len(self.classes))) for index in indexes]
        )
        self._labels = np.concatenate([index["label"] for index in indexes])
        # A list: searching it for one number takes a tenth of the time of searching an array.
        self._starts: list[int] = [0, *np.cumsum(self.counts.sum(axis=1)).tolist()]
        # The offsets of the records of each shard, and its size: record i ends where i + 1 starts.
        self._offsets = [
            np.append(index["offset"], shard.bytes)
            for shard, index in zip(shards, indexes, strict=True)
        ]
        self._check_classes(manifest)

    def _check_classes(self, manifest: Path) -> None:
        """Refuse a manifest with classes that are not the labels of the records.

        An index has the numbers of the classes, not their names. So compare the first record of
        each class in each shard.
        """
        firsts: dict[int, int] = {}
        for shard in range(len(self._files)) if self.classes else ():
            numbers, positions = np.unique(self.classes_of(shard), return_index=True)
            records = self._starts[shard] + positions
            firsts |= dict(zip(records.tolist(), numbers.tolist(), strict=True))
        self.fetch(list(firsts))
        for record, number in firsts.items():
            label = self._label(record)
            if not 0 <= number < len(self.classes) or label != self.classes[number]:
                raise UserError(
                    f"{manifest}: the classes {', '.join(self.classes)} do not fit "
                    f"{self._files[self._shard(record)].path.name}: a record with the label "
                    f"{label!r} has the class {number + 1}; delete the manifest and run again"
                )

    def _label(self, number: int) -> str:
        try:
            return first_bytes(self.record(number), "label").decode()
        except ValueError as error:
            raise self.damaged(number, str(error)) from None

    def __len__(self) -> int:
        return self._starts[-1]

    def classes_of(self, shard: int) -> np.ndarray:
        """Return the class numbers of the records of a shard: (n,) int16."""
        return self._labels[self._starts[shard] : self._starts[shard + 1]]

    def classes_at(self, numbers: np.ndarray) -> np.ndarray:
        """Return the class numbers of some records, given by their numbers (n,): (n,) int32."""
        return self._labels[numbers].astype(np.int32)

    def members(self) -> tuple[np.ndarray, np.ndarray]:
        """Return numbers that identify the slide and the patient of each record.

        Returns:
            Twice (records,) uint64. They are read again with each call, since few need them.
        """
        indexes = [np.load(path, mmap_mode="r", allow_pickle=False) for path in self._index_paths]
        slides, patients = (
            np.concatenate([index[column] for index in indexes]) for column in ("slide", "patient")
        )
        return slides, patients

    def __getitem__(self, number: int) -> Tile:
        """Return a tile; its checksums are verified."""
        data = self.record(number)
        try:
            return decode_tile(data)
        except UserError as error:
            raise self.damaged(number, str(error)) from None

    def image(self, number: int) -> bytes:
        """Return the JPEG of a tile; its checksums are verified, its other features not decoded."""
        try:
            return image_of(self.record(number))
        except ValueError as error:
            raise self.damaged(number, str(error)) from None

    def record(self, number: int) -> bytes:
        """Return an encoded record; its checksums are verified."""
        return read_sized(*self.locate(number))

    def records(self, numbers: Sequence[int]) -> Iterator[bytes]:
        """Yield some encoded records; their checksums are verified.

        Those that follow each other in a shard are read together, up to `READ_BYTES` at a time.
        """
        wanted = np.asarray(numbers, np.int64)
        shards = np.searchsorted(self._starts, wanted, side="right")
        new = np.flatnonzero((np.diff(wanted) != 1) | (np.diff(shards) != 0)) + 1
        for begin, end in itertools.pairwise([0, *new.tolist(), len(wanted)]):
            if begin < end:
                yield from self._consecutive(int(wanted[begin]), end - begin)

    def _consecutive(self, number: int, count: int) -> Iterator[bytes]:
        """Yield records of one shard from a first one on."""
        shard = self._shard(number)
        first = number - self._starts[shard]
        offsets = self._offsets[shard][first : first + count + 1].tolist()
        begin = 0
        while begin < count:
            # At least one record, however large it is.
            end = bisect_right(offsets, offsets[begin] + READ_BYTES, begin + 2) - 1
            yield from read_consecutive(self._files[shard], offsets[begin : end + 1])
            begin = end

    def damaged(self, number: int, fault: str) -> RecordError:
        """Return an error that names the file and offset of a record, and its fault.

        For faults that the checksums do not detect.
        """
        shard = self._shard(number)
        offset = int(self._offsets[shard][number - self._starts[shard]])
        return damaged(self._files[shard].path, offset, fault)

    def _shard(self, number: int) -> int:
        if not 0 <= number < len(self):
            raise IndexError(number)
        return bisect_right(self._starts, number) - 1

    def locate(self, number: int) -> tuple[RecordFile, int, int]:
        """Return a record's file, which `close` closes, and its offset and size in bytes."""
        shard = self._shard(number)
        position = number - self._starts[shard]
        begin, end = self._offsets[shard][position : position + 2].tolist()
        return self._files[shard], begin, end - begin

    @property
    def in_store(self) -> bool:
        """Whether a shard is in a store, so that `fetch` saves time."""
        return self._cache is not None

    def fetch(self, numbers: Iterable[int]) -> None:
        """Fetch records that are in a store, so that reading them is fast; else do nothing.

        Raises:
            UserError: the store does not answer or denies access, or a shard was changed.
        """
        if self._cache is None:
            return
        self.fetch_beginnings(numbers)

    def fetch_beginnings(self, numbers: Iterable[int], most: int | None = None) -> None:
        """Fetch the first bytes of records, at most so many of each; see `fetch`."""
        ranges: dict[RecordFile, list[tuple[int, int]]] = {}
        for number in numbers:
            file, begin, size = self.locate(number)
            ranges.setdefault(file, []).append((begin, begin + min(size, most or size)))
        self.fetch_ranges(ranges)

    def fetch_ranges(self, ranges: Mapping[RecordFile, Sequence[tuple[int, int]]]) -> None:
        """Fetch ranges of some shards, of which each has a begin and an end; see `fetch`."""
        in_store: dict[Any, Any] = {file: parts for file, parts in ranges.items() if file.in_store}
        if self._cache is not None and in_store:
            self._cache.fetch(in_store)

    def sha256_of(self, shard: int) -> str:
        """Return the SHA-256 of a shard; all of it is read."""
        file, size, digest = self._files[shard], int(self._offsets[shard][-1]), hashlib.sha256()
        for begin in range(0, size, HASHED_BYTES):
            digest.update(file.read(begin, min(HASHED_BYTES, size - begin)))
        return digest.hexdigest()

    def records_of(self, shard: int) -> range:
        """Return the numbers of the records of a shard."""
        return range(self._starts[shard], self._starts[shard + 1])

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()
        if self._cache is not None:
            self._cache.close()


def open_shards(
    manifest: Path, shards: Sequence[Shard], cache_gb: float
) -> tuple[list[RecordFile], "Cache | None"]:
    """Open shards; refuse those that differ from the manifest.

    Returns:
        The files, and the cache of those in a store; None: there are none.
    """
    paths = [shard.path_from(manifest) for shard in shards]
    cache = None
    if any(map(is_remote, paths)):
        # Takes a while to import.
        from gigatile.stores.cache import Cache

        cache = Cache(cache_gb * 1e9)
    # All at once, with a request for many.
    faults = unreadable(paths)
    # A joined run may list a shard several times.
    opened: dict[Path, RecordFile] = {}
    for path, shard in zip(paths, shards, strict=True):
        if path in opened:
            continue
        if cache is not None and is_remote(path):
            if path in faults:
                raise UserError(f"{address_of(path)}: {faults[path]}; {manifest} lists it")
            file: Any = cache.open(path, shard.version)
        elif path.is_file():
            file = DiskFile(path)
        else:
            raise UserError(f"{manifest}: lists {path}, which does not exist")
        opened[path] = file
        if file.size != shard.bytes:
            raise UserError(
                f"{address_of(path)}: {file.size} bytes, but {shard.bytes} in the manifest; "
                f"damaged, delete {manifest} and run again"
            )
    return [opened[path] for path in paths], cache


def _checked_index(manifest: Path, shard: Shard) -> Path:
    """Return the path of the index of a shard; refuse one that differs from the manifest."""
    index = manifest.parent / shard.index
    if not index.is_file():
        raise UserError(f"{manifest}: lists {index}, which does not exist")
    if sha256_of(index) != shard.index_sha256:
        raise UserError(
            f"{index}: its SHA-256 is not that of the manifest; damaged, delete {manifest} and run "
            "again"
        )
    return index
