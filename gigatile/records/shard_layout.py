"""Assign the records of a split to shards.

Each record gets a random 64-bit key, computed from the seed, its slide and its index in the slide.
Sorted by key and cut into parts of equal size, the records are the shards.

The table of a large cohort does not fit into memory, so this is an external sort: the ranks write
sorted runs of bounded size, one file each. The first key of every shard is found by bisection over
all runs, and a shard reads its part of each run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from gigatile.errors import UserError, all_faults
from gigatile.parallel.world import World
from gigatile.records.files import DiskFile
from gigatile.records.parts import span_of
from gigatile.records.shards import INDEX
from gigatile.records.shuffle import key64, random64
from gigatile.records.tfrecord import record_offsets
from gigatile.records.tile import encode_sheet_fields, read_tiles
from gigatile.records.volume import case_of
from gigatile.settings.shards import ShardSettings

# Records per run: 8 MB.
RUN_RECORDS = 1 << 18
# A run is an array (4, n) uint64 with these rows.
KEY, SOURCE, OFFSET, LENGTH = range(4)
MAX_KEY = np.uint64(2**64 - 1)


# Returns the slide, case or image that records belong to: of a file, or from a byte of it on.
RecordId = Callable[..., str]


@dataclass(frozen=True)
class SlideGrid:
    """The tile grid of a slide; see `gigatile.slides.grid.Grid`."""

    columns: int
    rows: int
    extent: float
    mpp: float | None


@dataclass(frozen=True)
class Source:
    """The records of one slide or case, with its patient and label. A case has no label.

    Attributes:
        grid: the tile grid, needed to keep a slide together; else None.
        span: offset and size of its records in a file that others share; None: the whole file.
    """

    slide: str
    patient: str
    label: str
    records: Path
    grid: SlideGrid | None = None
    span: tuple[int, int] | None = None

    @classmethod
    def from_row(cls, row: Mapping[str, str], unit: str, folder: Path) -> "Source":
        """Return the source of a row of the table of slides or cases.

        Args:
            row: of the table.
            unit: `slide` or `case`.
            folder: of the records.
        """
        grid = None
        if "extent" in row:
            mpp = float(row["mpp"]) if row["mpp"] else None
            grid = SlideGrid(int(row["columns"]), int(row["rows"]), float(row["extent"]), mpp)
        part = row.get("part", "")
        span = span_of(folder, part, row[unit]) if part else None
        records = folder / f"{part or row[unit]}.tfrecord"
        return cls(row[unit], row["patient"], row.get("label", ""), records, grid, span)

    @property
    def sheet_fields(self) -> bytes:
        """Patient and label as encoded features, which are appended to each record of a shard."""
        return encode_sheet_fields(self.patient, self.label)


@dataclass(frozen=True)
class ShardLayout:
    """Which records go into which shard, in which order.

    Attributes:
        split: train, valid or test.
        sources: the slides or cases of the split.
        record_counts: (sources,) int64.
        runs: files of (4, n) uint64, sorted by key; `SOURCE` indexes `sources`.
        starts: (shards + 1,) int64; shard i holds the records starts[i] to starts[i + 1] - 1 in
            the order of all keys.
        first_keys: (shards,) uint64, the key of the first record of each shard.
        smaller: (shards,) int64, the number of records with smaller keys than that.
    """

    split: str
    sources: Sequence[Source]
    record_counts: np.ndarray
    runs: Sequence[Path]
    starts: np.ndarray
    first_keys: np.ndarray
    smaller: np.ndarray

    index_type = INDEX

    @property
    def shards(self) -> int:
        """The number of shards."""
        return len(self.first_keys)

    @cached_property
    def sheet_fields(self) -> list[bytes]:
        """`Source.sheet_fields` of each source."""
        return [source.sheet_fields for source in self.sources]

    def shard_records(self, shard: int) -> np.ndarray:
        """Return the records of a shard in their order: (4, n) uint64, rows as in a run."""
        low = self.first_keys[shard]
        high = self.first_keys[shard + 1] if shard + 1 < self.shards else MAX_KEY
        parts = [np.empty((4, 0), np.uint64)]
        for path in self.runs:
            run = np.load(path, mmap_mode="r")
            begin = np.searchsorted(run[KEY], low, "left")
            end = np.searchsorted(run[KEY], high, "right")
            parts.append(np.array(run[:, begin:end]))
        records = np.concatenate(parts, axis=1)
        # Records with equal keys are ordered by source and offset; a shard may start between them.
        order = np.lexsort((records[OFFSET], records[SOURCE], records[KEY]))
        begin = self.starts[shard] - self.smaller[shard]
        return records[:, order[begin : begin + self.starts[shard + 1] - self.starts[shard]]]

    def complete_index(self, entries: np.ndarray, sources: np.ndarray, content: memoryview) -> None:
        """Do nothing: the index has no further columns."""

    def slides_in(self, shard: int) -> None:
        """Return None: the tiles of a slide are in many shards."""


def slide_or_case_of(path: Path) -> str:
    """Return the id of the slide or case that a file of records belongs to.

    Only the first record is read.
    """
    with DiskFile(path) as file:
        case = case_of(file, 0)
    return next(read_tiles(path)).slide if case is None else case


def lay_out_shards(
    world: World,
    split: str,
    sources: Sequence[Source],
    settings: ShardSettings,
    folder: Path,
    record_id: RecordId = slide_or_case_of,
) -> ShardLayout:
    """Compute the shard layout of a split. Collective: every rank must call it.

    Args:
        world: the ranks.
        split: train, valid or test.
        sources: slides or cases of the split, in the same order on every call.
        settings: target size of a shard, and the seed.
        folder: where the ranks write their runs; shared by all ranks.
        record_id: returns the slide or case that a file of records belongs to.

    Raises:
        UserError: names every record file that is missing, has a damaged header or first record,
            or belongs to another slide.
    """
    sizes = world.on_rank0(partial(file_sizes, sources))
    assigned = assigned_sources(sizes, world)
    scan = _Scan(sources, assigned, settings.seed, record_id, world.report_progress)
    new_runs = scan.runs()
    names: list[str] = []
    # The ranks synchronise after each run, so a fast rank waits for one run of a slow rank, and
    # never for its whole part of the cohort.
    while True:
        name = f"{split}-{len(names):06d}-{world.rank:06d}.npy"
        written = world.gather(partial(_write_next, new_runs, folder / name))
        if not any(written):
            break
        names += [name for name in written if name is not None]
    faults = [fault for part in world.gather(lambda: scan.faults) for fault in part]
    if faults:
        world.on_rank0(partial(refuse, split, faults))
    counts = world.sum(scan.record_counts)
    total, shards = int(counts.sum()), 1
    if total:
        appended = np.array([len(source.sheet_fields) for source in sources], np.int64)
        size = int(sizes.sum() + (counts * appended).sum())
        shards = max(1, min(total, round(size / (settings.target_mb * 1e6))))
    # A record's key does not depend on the other slides: adding a slide inserts its records and
    # moves the boundaries between shards, and nothing else.
    starts = np.arange(shards + 1) * total // shards
    own_runs = [folder / name for name in names if name.endswith(f"-{world.rank:06d}.npy")]
    first_keys, smaller = _keys_at(world, own_runs, starts[:-1])
    runs = [folder / name for name in names]
    return ShardLayout(split, sources, counts, runs, starts, first_keys, smaller)


def file_sizes(sources: Sequence[Source]) -> np.ndarray:
    """Return the size of each record file in bytes: (sources,) int64.

    Raises:
        UserError: names every file that is missing.
    """
    files = dict.fromkeys(source.records for source in sources)
    missing = [path for path in files if not path.is_file()]
    if missing:
        faults = [f"{path}: no such record file" for path in missing]
        raise UserError(faults[0]) if len(faults) == 1 else all_faults("missing files", faults)
    sizes = [source.span[1] if source.span else source.records.stat().st_size for source in sources]
    return np.array(sizes, np.int64)


def assigned_sources(sizes: np.ndarray, world: World) -> list[int]:
    """Return the indices of the sources that this rank scans: about its share of the bytes."""
    middles = np.cumsum(sizes) - sizes / 2
    owners = middles * world.size // max(1, int(sizes.sum()))
    return np.flatnonzero(np.minimum(owners, world.size - 1) == world.rank).tolist()


class _Scan:
    """Reads the record headers of some sources and computes the key of each record.

    Attributes:
        record_counts: (sources,) int64, the number of records scanned so far.
        faults: one message per record file that cannot be used; scanning continues after it.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        assigned: Sequence[int],
        seed: int,
        record_id: RecordId,
        report_progress: Callable[[str], None],
    ) -> None:
        self._sources, self._assigned, self._seed = sources, assigned, seed
        self._record_id, self._report_progress = record_id, report_progress
        self.record_counts = np.zeros(len(sources), np.int64)
        self.faults: list[str] = []

    def runs(self) -> Iterator[np.ndarray]:
        """Yield sorted runs of at most `RUN_RECORDS` records: (4, n) uint64."""
        pending = np.empty((4, 0), np.uint64)
        for index in self._assigned:
            try:
                records = self._records(index)
            except UserError as fault:
                self.faults.append(str(fault))
                continue
            self.record_counts[index] = records.shape[1]
            self._report_progress(f"after the headers of {self._sources[index].records}")
            pending = np.concatenate([pending, records], axis=1)
            while pending.shape[1] >= RUN_RECORDS:
                yield _sorted(pending[:, :RUN_RECORDS])
                pending = pending[:, RUN_RECORDS:]
        if pending.shape[1]:
            yield _sorted(pending)

    def _records(self, index: int) -> np.ndarray:
        source = self._sources[index]
        begin, size = source.span or (0, source.records.stat().st_size)
        offsets = record_offsets(source.records, begin, begin + size)
        if len(offsets):
            check_id(source, self._record_id)
        records = np.empty((4, len(offsets)), np.uint64)
        key = key64("shards", self._seed, source.slide)
        records[KEY] = random64(key, np.arange(len(offsets)))
        records[SOURCE] = index
        records[OFFSET] = offsets
        records[LENGTH] = np.diff(offsets, append=begin + size)
        return records


def check_id(source: Source, record_id: RecordId) -> None:
    """Refuse a record file of another slide or case."""
    begin = (source.span[0],) if source.span else ()
    recorded_id = record_id(source.records, *begin)
    if recorded_id != source.slide:
        raise UserError(
            f"{source.records}: contains the records of {recorded_id!r}, expected "
            f"{source.slide!r}; delete this file and run again"
        )


def _sorted(records: np.ndarray) -> np.ndarray:
    return records[:, np.argsort(records[KEY], kind="stable")]


def _write_next(runs: Iterator[np.ndarray], path: Path) -> str | None:
    run = next(runs, None)
    if run is None:
        return None
    np.save(path, run)
    return path.name


def refuse(split: str, faults: Sequence[str]) -> None:
    """Raise the faults of all record files of a split."""
    if len(faults) == 1:
        raise UserError(faults[0])
    raise all_faults(f"{split}: {len(faults)} record files cannot be used", faults)


def _keys_at(
    world: World, own_runs: Sequence[Path], positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys at some positions of the global order, and the number of smaller keys.

    The key at position p is the largest number k such that at most p keys are smaller than k. Its
    hexadecimal digits are computed from the first to the last; each digit takes one count over all
    ranks.

    Args:
        world: the ranks.
        own_runs: the runs that this rank wrote.
        positions: (n,) int64.
    """
    keys = np.zeros(len(positions), np.uint64)
    for shift in range(60, -1, -4):
        with_digit = keys[:, None] | np.arange(1, 16, dtype=np.uint64) << np.uint64(shift)
        fits = world.sum(_count_smaller(own_runs, with_digit)) <= positions[:, None]
        keys |= fits.sum(axis=1).astype(np.uint64) << np.uint64(shift)
    return keys, world.sum(_count_smaller(own_runs, keys))


def _count_smaller(runs: Sequence[Path], keys: np.ndarray) -> np.ndarray:
    """Count the records with smaller keys than each of `keys`; int64 of the same shape."""
    counts = np.zeros(keys.shape, np.int64)
    for run in runs:
        # Open the file for each count: a long-lived map would keep the pages read so far in memory.
        counts += np.searchsorted(np.load(run, mmap_mode="r")[KEY], keys, "left")
    return counts
