"""Shards: the tiles, or volumes, of a split, shuffled over all its slides and grouped into files.

A manifest names them; `gigatile/records/writing.py` makes them. What is read is checked: an index
against its SHA-256, a record against its CRCs.
"""

from bisect import bisect_right
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from gigatile.errors import UserError
from gigatile.files import read_json, sha256_of
from gigatile.records.tfrecord import RecordError, damaged, read_sized
from gigatile.records.tile import Tile, decode_tile, image_of

SCHEMA = 3
MANIFEST = "manifest.json"
# What the index of a shard holds of each record: where it begins, and the number of its label.
INDEX = np.dtype([("offset", "<i8"), ("label", "<i2")])


class _Shard(BaseModel):
    """What is used of a shard's entry in a manifest."""

    model_config = ConfigDict(strict=True)

    file: str
    index: str
    bytes: int
    index_sha256: str
    classes: list[str] | None = None  # of a run with other labels


class _Split(BaseModel):
    shards: list[_Shard]


class _Manifest(BaseModel):
    model_config = ConfigDict(strict=True)

    classes: list[str]
    splits: dict[str, _Split]

    @model_validator(mode="after")
    def _classes_are_known(self) -> "_Manifest":
        for split in self.splits.values():
            for shard in split.shards:
                if unknown := set(shard.classes or ()) - set(self.classes):
                    raise ValueError(f"{shard.file} has classes {', '.join(sorted(unknown))}")
        return self


def _read_manifest(path: Path) -> _Manifest:
    """Read a manifest.

    Raises:
        UserError: it is missing, of another schema, or has other fields than `write_shards` writes.
    """
    content = read_json(path)
    if isinstance(content, dict) and content.get("schema") != SCHEMA:
        raise UserError(
            f"{path}: of schema {content.get('schema')} where {SCHEMA} is read; delete it to have "
            "it remade"
        )
    try:
        return _Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        reason = f"{field}: {first['msg']}" if field else first["msg"]
        raise UserError(
            f"{path}: damaged, or not a manifest of shards ({reason}); delete it to have it remade"
        ) from None


class ShardReader:
    """The records of one split as a sequence: any record by its number, without reading others.

    Attributes:
        classes: the labels in the order of the model's outputs; of volumes none.
        counts: (shards, classes) int64, the records of each class in each shard; of volumes one
            column.
        bytes: of all shards.

    Safe to read from several threads.
    """

    def __init__(self, manifest: Path, split: str) -> None:
        """Open a split.

        Raises:
            UserError: the manifest or one of its files is missing, the manifest is damaged or of
                another schema, a shard has another size or an index another content, or the
                classes are not those of the records.
            RecordError: the first record of a class in a shard is damaged, or of no tile.
        """
        described = _read_manifest(manifest)
        if split not in described.splits or not described.splits[split].shards:
            raise UserError(f"{manifest}: has no shards of {split}; delete it to have it remade")
        self.classes: list[str] = described.classes
        self._paths: list[Path] = []
        indexes: list[np.ndarray] = []
        self.bytes = 0
        for shard in described.splits[split].shards:
            path = manifest.parent / shard.file
            index = manifest.parent / shard.index
            for needed in (path, index):
                if not needed.is_file():
                    raise UserError(f"{manifest}: names {needed}, which is not there")
            if path.stat().st_size != shard.bytes:
                raise UserError(
                    f"{path}: {path.stat().st_size} bytes where the manifest says "
                    f"{shard.bytes}; damaged, delete {manifest} to have it remade"
                )
            if sha256_of(index) != shard.index_sha256:
                raise UserError(
                    f"{index}: not what the manifest says; damaged, delete {manifest} to have it "
                    "remade"
                )
            self._paths.append(path)
            content = np.load(index, allow_pickle=False)
            if shard.classes is not None:  # of a run with other labels, whose numbers are others
                numbers = [self.classes.index(label) for label in shard.classes]
                content["label"] = np.array(numbers, "<i2")[content["label"]]
            indexes.append(content)
            self.bytes += shard.bytes
        self.counts = np.stack(
            [np.bincount(index["label"], minlength=max(1, len(self.classes))) for index in indexes]
        )
        self._labels = np.concatenate([index["label"] for index in indexes])
        # A list: to search it for one number takes a tenth of the time that an array takes.
        self._starts: list[int] = [0, *np.cumsum(self.counts.sum(axis=1)).tolist()]
        # Where records begin, and last where the shard ends: the next one's beginning is an end.
        self._offsets = [
            np.append(index["offset"], path.stat().st_size)
            for path, index in zip(self._paths, indexes, strict=True)
        ]
        self._files = [path.open("rb", buffering=0) for path in self._paths]
        self._check_classes(manifest)

    def _check_classes(self, manifest: Path) -> None:
        """Refuse a manifest whose classes are not the labels that the records have.

        Nothing else holds them: an index has their numbers alone. Looked at is the first record of
        each class in each shard.
        """
        for shard in range(len(self._files)) if self.classes else ():
            numbers, firsts = np.unique(self.classes_of(shard), return_index=True)
            for number, first in zip(numbers.tolist(), firsts.tolist(), strict=True):
                record = self._starts[shard] + first
                label = self[record].label
                if not 0 <= number < len(self.classes) or label != self.classes[number]:
                    raise UserError(
                        f"{manifest}: its classes, {', '.join(self.classes)}, do not fit "
                        f"{self._paths[shard].name}: a tile there that is of {label!r} counts as "
                        f"class {number + 1}; delete the manifest to have it remade"
                    )

    def __len__(self) -> int:
        return self._starts[-1]

    def classes_of(self, shard: int) -> np.ndarray:
        """Return the numbers of the classes of a shard's records: (n,) int16."""
        return self._labels[self._starts[shard] : self._starts[shard + 1]]

    def classes_at(self, numbers: np.ndarray) -> np.ndarray:
        """Return the numbers of the classes of some tiles, (n,) of integers: (n,) int32."""
        return self._labels[numbers].astype(np.int32)

    def __getitem__(self, number: int) -> Tile:
        """Return one tile, its checksums verified."""
        data = self._record(number)
        try:
            return decode_tile(data)
        except UserError as error:
            raise self.damaged(number, str(error)) from None

    def image(self, number: int) -> bytes:
        """Return the JPEG of one tile, its checksums verified; the rest of it is not decoded."""
        try:
            return image_of(self._record(number))
        except ValueError as error:
            raise self.damaged(number, str(error)) from None

    def damaged(self, number: int, what: str) -> RecordError:
        """Return an error to be raised that names where a tile stands, and what is wrong with it.

        For what the checksums of its record do not show.
        """
        shard = self._shard(number)
        offset = int(self._offsets[shard][number - self._starts[shard]])
        return damaged(self._paths[shard], offset, what)

    def _shard(self, number: int) -> int:
        if not 0 <= number < len(self):
            raise IndexError(number)
        return bisect_right(self._starts, number) - 1

    def place(self, number: int) -> tuple[int, int, int, Path]:
        """Return where a record stands: descriptor, offset and size in bytes, and the file's path.

        The descriptor is of use as long as this reader is.
        """
        shard = self._shard(number)
        place = number - self._starts[shard]
        begin, end = self._offsets[shard][place : place + 2].tolist()
        return self._files[shard].fileno(), begin, end - begin, self._paths[shard]

    def _record(self, number: int) -> bytes:
        return read_sized(*self.place(number))

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()
