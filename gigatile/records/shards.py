"""Shards: the tiles of a split, shuffled over all its slides and grouped into files.

A manifest names them; `gigatile/records/writing.py` makes them. What is read is checked: an index
against its SHA-256, a record against its CRCs.
"""

from pathlib import Path

import numpy as np

from gigatile.errors import UserError
from gigatile.files import read_json, sha256_of
from gigatile.records.tfrecord import read_at
from gigatile.records.tile import Tile, decode_tile

SCHEMA = 3
MANIFEST = "manifest.json"
# What the index of a shard holds of each record: where it begins, and the number of its label.
INDEX = np.dtype([("offset", "<i8"), ("label", "<i2")])


class ShardReader:
    """The records of one split as a sequence: any record by its number, without reading others.

    Attributes:
        classes: the labels in the order of the model's outputs.
        counts: (shards, classes) int64, the records of each class in each shard.
        bytes: of all shards.

    Safe to read from several threads.
    """

    def __init__(self, manifest: Path, split: str) -> None:
        """Open a split.

        Raises:
            UserError: the manifest or one of its files is missing, the manifest is of another
                schema, a shard has another size or an index another content.
        """
        described = read_json(manifest)
        if described.get("schema") != SCHEMA:
            raise UserError(
                f"{manifest}: of schema {described.get('schema')} where {SCHEMA} is read; delete "
                "it to have it remade"
            )
        self.classes: list[str] = described["classes"]
        self._paths: list[Path] = []
        self._indexes: list[np.ndarray] = []
        self.bytes = 0
        for shard in described["splits"][split]["shards"]:
            path = manifest.parent / shard["file"]
            index = manifest.parent / shard["index"]
            for needed in (path, index):
                if not needed.is_file():
                    raise UserError(f"{manifest}: names {needed}, which is not there")
            if path.stat().st_size != shard["bytes"]:
                raise UserError(
                    f"{path}: {path.stat().st_size} bytes where the manifest says "
                    f"{shard['bytes']}; damaged, delete {manifest} to have it remade"
                )
            if sha256_of(index) != shard["index_sha256"]:
                raise UserError(
                    f"{index}: not what the manifest says; damaged, delete {manifest} to have it "
                    "remade"
                )
            self._paths.append(path)
            content = np.load(index, allow_pickle=False)
            if "classes" in shard:  # of a run with other labels, whose numbers are others
                numbers = [self.classes.index(label) for label in shard["classes"]]
                content["label"] = np.array(numbers, "<i2")[content["label"]]
            self._indexes.append(content)
            self.bytes += shard["bytes"]
        self.counts = np.stack(
            [np.bincount(index["label"], minlength=len(self.classes)) for index in self._indexes]
        )
        self._starts = np.concatenate([[0], np.cumsum(self.counts.sum(axis=1))])
        self._files = [path.open("rb", buffering=0) for path in self._paths]

    def __len__(self) -> int:
        return int(self._starts[-1])

    def classes_of(self, shard: int) -> np.ndarray:
        """Return the numbers of the classes of a shard's records: (n,) int16."""
        return self._indexes[shard]["label"]

    def __getitem__(self, number: int) -> Tile:
        """Return one tile, its checksums verified."""
        if not 0 <= number < len(self):
            raise IndexError(number)
        shard = int(np.searchsorted(self._starts, number, side="right")) - 1
        offset = int(self._indexes[shard]["offset"][number - self._starts[shard]])
        return decode_tile(read_at(self._files[shard].fileno(), offset, self._paths[shard]))

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()
