"""Shards: the tiles of a split, shuffled over all its slides and grouped into files.

The first step of the shuffle, one record file per slide, is done when slides are tiled. Here every
record gets a random key from the seed, its slide and its number within the slide; the records in
the order of their keys, cut into files of equal counts, are the shards. One shard's records are in
memory at a time.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gigatile.errors import UserError
from gigatile.files import read_json, sha256_of, write_json, write_whole
from gigatile.records.shuffle import key64, random64
from gigatile.records.tfrecord import (
    RecordError,
    damaged,
    read_at,
    read_sized,
    record_offsets,
    write_records,
)
from gigatile.records.tile import Tile, decode_tile, image_of
from gigatile.settings import ShardSettings

SCHEMA = 2
MANIFEST = "manifest.json"
# What the index of a shard holds of each record: where it begins, and the number of its label.
INDEX = np.dtype([("offset", "<i8"), ("label", "<i2")])


@dataclass(frozen=True)
class Source:
    """One slide's records, and the label that the cohort gives the slide."""

    slide: str
    label: str
    records: Path


def write_shards(sources: dict[str, Sequence[Source]], settings: ShardSettings, out: Path) -> None:
    """Write the shards of each split, and last the manifest that names them.

    Args:
        sources: the slides of each split.
        settings: wanted size of a shard, and the seed of the shuffle.
        out: the folder. Shards in it that the new manifest does not name are deleted.

    Raises:
        UserError: a record file is damaged or was tiled under another label, or a split has no
            slide.
    """
    for split, slides in sources.items():
        if not slides:
            raise UserError(
                f"no slide with tiles is in {split}; there is nothing to make shards of"
            )
    labels = sorted({source.label for split in sources.values() for source in split})
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "seed": settings.seed,
        "target_mb": settings.target_mb,
        "classes": labels,
        "splits": {},
    }
    (out / MANIFEST).unlink(missing_ok=True)
    for split, slides in sources.items():
        manifest["splits"][split] = _write_split(split, slides, labels, settings, out)
    written = {
        name
        for part in manifest["splits"].values()
        for shard in part["shards"]
        for name in (shard["file"], shard["index"])
    }
    # Also what a killed run left under a temporary name; other files are none of our business.
    for path in out.glob("*-?????-of-?????*"):
        if path.name not in written:
            path.unlink()
    write_json(out / MANIFEST, manifest)


def _write_split(
    split: str, slides: Sequence[Source], labels: list[str], settings: ShardSettings, out: Path
) -> dict[str, Any]:
    slides = sorted(slides, key=lambda source: source.slide)
    offsets = [record_offsets(source.records) for source in slides]
    counts = np.array([len(found) for found in offsets])
    owner = np.repeat(np.arange(len(slides)), counts)
    label = np.array([labels.index(source.label) for source in slides])[owner]
    offset = np.concatenate(offsets)
    # A record's key does not depend on the other slides, so a slide more or less changes
    # the shards by its own records and by where they are cut.
    keys = np.concatenate(
        [
            random64(key64("shards", settings.seed, source.slide), np.arange(count))
            for source, count in zip(slides, counts, strict=True)
        ]
    )
    shuffled = np.argsort(keys, kind="stable")
    size = sum(source.records.stat().st_size for source in slides)
    number = max(1, min(len(shuffled), round(size / (settings.target_mb * 1e6))))
    cuts = np.arange(number + 1) * len(shuffled) // number
    shards = []
    for shard in range(number):
        chosen = shuffled[cuts[shard] : cuts[shard + 1]]
        path = out / f"{split}-{shard:05d}-of-{number:05d}.tfrecord"
        write_records(path, _gather(slides, owner[chosen], offset[chosen]))
        shards.append(_describe_shard(path, label[chosen]))
    by_label: dict[str, int] = {}
    for source, count in zip(slides, counts, strict=True):
        by_label[source.label] = by_label.get(source.label, 0) + int(count)
    return {
        "records": int(counts.sum()),
        "slides": len(slides),
        "by_label": dict(sorted(by_label.items())),
        "shards": shards,
    }


def _gather(slides: Sequence[Source], owner: np.ndarray, offset: np.ndarray) -> list[bytes]:
    """Return the chosen records in order; each file is read once, from its start to its end."""
    found: list[bytes] = [b""] * len(owner)
    for slide in np.unique(owner):
        source = slides[slide]
        places = np.flatnonzero(owner == slide)
        with source.records.open("rb") as handle:
            for place in places[np.argsort(offset[places])]:
                data = read_at(handle.fileno(), int(offset[place]), source.records)
                found[place] = data
                if (label := decode_tile(data).label) != source.label:
                    raise UserError(
                        f"{source.records}: tiled under label {label!r}, but the cohort now says "
                        f"{source.label!r}; delete the file to have it remade"
                    )
    return found


def _describe_shard(path: Path, labels: np.ndarray) -> dict[str, Any]:
    """Write the index of a shard, and describe both; `labels` are the records', (n,) of numbers."""
    content = np.empty(len(labels), INDEX)
    content["offset"], content["label"] = record_offsets(path), labels
    index = path.with_suffix(".index.npy")
    with write_whole(index) as temporary:
        np.save(temporary, content)
    return {
        "file": path.name,
        "records": len(content),
        "bytes": path.stat().st_size,
        "sha256": sha256_of(path),
        "index": index.name,
        "index_sha256": sha256_of(index),
    }


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
        indexes: list[np.ndarray] = []
        self.bytes = 0
        for shard in described["splits"][split]["shards"]:
            path = manifest.parent / shard["file"]
            index = manifest.parent / shard["index"]
            for needed in (path, index):
                if not needed.is_file():
                    raise UserError(f"{manifest}: names {needed.name}, which is not there")
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
            indexes.append(np.load(index, allow_pickle=False))
            self.bytes += shard["bytes"]
        self.counts = np.stack(
            [np.bincount(index["label"], minlength=len(self.classes)) for index in indexes]
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
        return decode_tile(self._record(number))

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

    def _record(self, number: int) -> bytes:
        shard = self._shard(number)
        place = number - self._starts[shard]
        begin, end = self._offsets[shard][place : place + 2].tolist()
        return read_sized(self._files[shard].fileno(), begin, end - begin, self._paths[shard])

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()
