"""Read shards: files with the tiles or volumes of a split, shuffled over all its slides.

Everything that is read is checked: an index against its SHA-256, a record against its CRCs.
"""

from bisect import bisect_right
from pathlib import Path

import numpy as np

from gigatile.errors import UserError
from gigatile.files import sha256_of
from gigatile.records.example import first_bytes
from gigatile.records.manifest import Shard, read_manifest
from gigatile.records.tfrecord import RecordError, damaged, read_sized
from gigatile.records.tile import Tile, decode_tile, image_of

# The index of a shard: for each record its byte offset in the shard, and the number of its class.
INDEX = np.dtype([("offset", "<i8"), ("label", "<i2")])
# The index of a shard of whole slides: also the cell of each tile in the grid of its slide.
SLIDE_INDEX = np.dtype([*INDEX.descr, ("column", "<i4"), ("row", "<i4")])


class ShardReader:
    """A split's records as a sequence with random access. It may be used from several threads.

    Attributes:
        classes: the labels in the order of the model's outputs; empty for volumes.
        counts: (shards, classes) int64, the number of records of each class in each shard; one
            column for volumes.
        bytes: the size of all shards.
    """

    def __init__(self, manifest: Path, split: str) -> None:
        """Open the shards of a split.

        Raises:
            UserError: the manifest or one of its files is missing or damaged, the schema is
                another one, or the classes are not those of the records.
            RecordError: the first record of a class in a shard is damaged, or has no label.
        """
        content = read_manifest(manifest)
        if split not in content.splits or not content.splits[split].shards:
            raise UserError(f"{manifest}: has no shards of {split}; delete it and run again")
        self.classes: list[str] = content.classes
        self._paths: list[Path] = []
        indexes: list[np.ndarray] = []
        self.bytes = 0
        for shard in content.splits[split].shards:
            path, index = _check_files(manifest, shard)
            self._paths.append(path)
            entries = np.load(index, allow_pickle=False)
            if shard.classes is not None:  # a joined run with other classes
                numbers = [self.classes.index(label) for label in shard.classes]
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
            np.append(index["offset"], path.stat().st_size)
            for path, index in zip(self._paths, indexes, strict=True)
        ]
        self._files = [path.open("rb", buffering=0) for path in self._paths]
        self._check_classes(manifest)

    def _check_classes(self, manifest: Path) -> None:
        """Refuse a manifest with classes that are not the labels of the records.

        An index has the numbers of the classes, not their names. So compare the first record of
        each class in each shard.
        """
        for shard in range(len(self._files)) if self.classes else ():
            numbers, firsts = np.unique(self.classes_of(shard), return_index=True)
            for number, first in zip(numbers.tolist(), firsts.tolist(), strict=True):
                label = self._label(self._starts[shard] + first)
                if not 0 <= number < len(self.classes) or label != self.classes[number]:
                    raise UserError(
                        f"{manifest}: the classes {', '.join(self.classes)} do not fit "
                        f"{self._paths[shard].name}: a record with the label {label!r} "
                        f"has the class {number + 1}; delete the manifest and run again"
                    )

    def _label(self, number: int) -> str:
        try:
            return first_bytes(self._record(number), "label").decode()
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

    def __getitem__(self, number: int) -> Tile:
        """Return a tile; its checksums are verified."""
        data = self._record(number)
        try:
            return decode_tile(data)
        except UserError as error:
            raise self.damaged(number, str(error)) from None

    def image(self, number: int) -> bytes:
        """Return the JPEG of a tile; its checksums are verified, its other features not decoded."""
        try:
            return image_of(self._record(number))
        except ValueError as error:
            raise self.damaged(number, str(error)) from None

    def damaged(self, number: int, fault: str) -> RecordError:
        """Return an error that names the file and offset of a record, and its fault.

        For faults that the checksums do not detect.
        """
        shard = self._shard(number)
        offset = int(self._offsets[shard][number - self._starts[shard]])
        return damaged(self._paths[shard], offset, fault)

    def _shard(self, number: int) -> int:
        if not 0 <= number < len(self):
            raise IndexError(number)
        return bisect_right(self._starts, number) - 1

    def locate(self, number: int) -> tuple[int, int, int, Path]:
        """Return a record's file descriptor, offset and size in bytes, and the file's path.

        `close` closes the descriptor.
        """
        shard = self._shard(number)
        position = number - self._starts[shard]
        begin, end = self._offsets[shard][position : position + 2].tolist()
        return self._files[shard].fileno(), begin, end - begin, self._paths[shard]

    def _record(self, number: int) -> bytes:
        return read_sized(*self.locate(number))

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


def _check_files(manifest: Path, shard: Shard) -> tuple[Path, Path]:
    """Return the paths of a shard and its index; refuse those that differ from the manifest."""
    path, index = manifest.parent / shard.file, manifest.parent / shard.index
    for file in (path, index):
        if not file.is_file():
            raise UserError(f"{manifest}: lists {file}, which does not exist")
    if path.stat().st_size != shard.bytes:
        raise UserError(
            f"{path}: {path.stat().st_size} bytes, but {shard.bytes} in the manifest; damaged, "
            f"delete {manifest} and run again"
        )
    if sha256_of(index) != shard.index_sha256:
        raise UserError(
            f"{index}: its SHA-256 is not that of the manifest; damaged, delete {manifest} and run "
            "again"
        )
    return path, index
