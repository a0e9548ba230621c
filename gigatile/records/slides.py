"""Read the slides in shards of whole slides: where their tiles are, and the tiles one by one."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gigatile.errors import UserError
from gigatile.records.manifest import SlideInShard, read_manifest
from gigatile.records.shards import CACHE_GB, SLIDE_INDEX, ShardReader


@dataclass(frozen=True)
class SlideTiles:
    """The tiles of a slide.

    Attributes:
        slide: its id, number of tiles and grid.
        cells: (rows, columns) int64, the number of the tile's record; -1 without a tile.
    """

    slide: SlideInShard
    cells: np.ndarray


class SlideReader:
    """A split's slides as a sequence. It may be used from several threads.

    Attributes:
        classes: the labels in the order of the model's outputs.
        counts: (shards, classes) int64, the number of slides of each class in each shard.
        bytes: the size of all shards.
    """

    def __init__(self, manifest: Path, split: str, cache_gb: float = CACHE_GB) -> None:
        """Open the shards of a split; see `ShardReader`.

        Raises:
            UserError: the manifest or one of its files is missing or damaged, or the shards are not
                those of whole slides.
        """
        self._shards = ShardReader(manifest, split, cache_gb)
        self.classes, self.bytes = self._shards.classes, self._shards.bytes
        self._slides: list[SlideInShard] = []
        self._indexes: list[Path] = []
        # Of each slide: its shard, the position of its first record there, and in the split.
        shards, positions, records = [], [], []
        total = 0
        for number, shard in enumerate(read_manifest(manifest).splits[split].shards):
            self._indexes.append(manifest.parent / shard.index)
            position = 0
            for slide in shard.slides or ():
                self._slides.append(slide)
                shards.append(number)
                positions.append(position)
                records.append(total + position)
                position += slide.tiles
            if position != shard.records:
                raise UserError(
                    f"{manifest}: {shard.file} does not consist of whole slides; delete the "
                    "manifest and run again"
                )
            total += position
        self._of_shard, self._positions = np.array(shards, np.int64), positions
        self._records = np.array(records, np.int64)
        self._labels = self._shards.classes_at(self._records)
        self.counts = np.zeros((len(self._indexes), max(1, len(self.classes))), np.int64)
        np.add.at(self.counts, (self._of_shard, self._labels), 1)

    def __len__(self) -> int:
        return len(self._slides)

    @property
    def mpp(self) -> float | None:
        """The median of the slides' micrometres per pixel; None if no slide has a known scale."""
        known = [slide.mpp for slide in self._slides if slide.mpp is not None]
        return statistics.median(known) if known else None

    def classes_of(self, shard: int) -> np.ndarray:
        """Return the class numbers of the slides of a shard: (n,) int32."""
        return self._labels[self._of_shard == shard]

    def classes_at(self, numbers: np.ndarray) -> np.ndarray:
        """Return the class numbers of some slides, given by their numbers (n,): (n,) int32."""
        return self._labels[numbers]

    def patients(self) -> np.ndarray:
        """Return numbers that identify the patient of each slide: (n,) uint64."""
        _, patients = self._shards.members()
        return patients[self._records]

    def __getitem__(self, number: int) -> SlideTiles:
        """Return where the tiles of a slide are.

        Raises:
            UserError: the index of its shard is damaged.
        """
        slide, path = self._slides[number], self._indexes[self._of_shard[number]]
        index = np.load(path, mmap_mode="r", allow_pickle=False)
        if index.dtype != SLIDE_INDEX:
            raise UserError(f"{path}: not the index of whole slides; delete it and run again")
        part = index[self._positions[number] :][: slide.tiles]
        cells = np.full((slide.rows, slide.columns), -1, np.int64)
        cells[part["row"], part["column"]] = self._records[number] + np.arange(slide.tiles)
        return SlideTiles(slide, cells)

    def slide_at(self, number: int) -> str:
        """Return the id of a slide, given by its number."""
        return self._slides[number].slide

    def records_of(self, number: int) -> range:
        """Return the numbers of the records of a slide's tiles."""
        begin = int(self._records[number])
        return range(begin, begin + self._slides[number].tiles)

    def record(self, record: int) -> bytes:
        """Return an encoded record, given by its number."""
        return self._shards.record(record)

    def records(self, numbers: Sequence[int]) -> Iterator[bytes]:
        """Yield encoded records, given by their numbers; see `ShardReader.records`."""
        return self._shards.records(numbers)

    @property
    def in_store(self) -> bool:
        """Whether a shard is in a store, so that `fetch` saves time."""
        return self._shards.in_store

    def fetch(self, numbers: Iterable[int]) -> None:
        """Fetch the records of slides that are in a store; see `ShardReader.fetch`."""
        self._shards.fetch(record for number in numbers for record in self.records_of(number))

    def image(self, record: int) -> bytes:
        """Return the JPEG of a tile, given by the number of its record."""
        return self._shards.image(record)

    def damaged(self, record: int, fault: str) -> UserError:
        """Return an error that names the file and offset of a tile's record."""
        return self._shards.damaged(record, fault)

    def close(self) -> None:
        """Close the files."""
        self._shards.close()
