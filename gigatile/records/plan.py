"""The plan of a split's shards: which record goes into which of them, and at which place.

Every record gets a random key from the seed, its slide and its number within the slide. In the
order of their keys, cut into parts of equal counts, the records are the shards. The rows of a large
cohort do not fit into memory, so they stand in sorted runs of bounded size, each a file. A shard's
rows lie together in each run; the keys at which shards begin are found by bisection over all.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from gigatile.errors import UserError, all_faults
from gigatile.parallel.world import World
from gigatile.records.shuffle import key64, random64
from gigatile.records.tfrecord import record_offsets
from gigatile.records.tile import encode_whose, read_tiles
from gigatile.records.volume import case_of
from gigatile.settings.shards import ShardSettings

# Rows of a run: 8 MB.
RUN = 1 << 18
# A row of the plan, a column of the arrays here: all of them (4, n) uint64.
KEY, SLIDE, OFFSET, LENGTH = range(4)
LARGEST = np.uint64(2**64 - 1)


@dataclass(frozen=True)
class Source:
    """One slide's records, or a case's, and what the cohort says of it; a case has no label."""

    slide: str
    patient: str
    label: str
    records: Path

    @property
    def whose(self) -> bytes:
        """What is appended to each of its records in a shard."""
        return encode_whose(self.patient, self.label)


@dataclass(frozen=True)
class Plan:
    """What goes into the shards of a split.

    Attributes:
        split: its name.
        slides: those of the split; a row names its slide by the number here.
        counts: (slides,) int64, the records of each slide.
        runs: files of rows, each in the order of the keys.
        cuts: (shards + 1,) int64, where in the order of all records a shard begins.
        keys: (shards,) uint64, the key of the first record of each shard.
        before: (shards,) int64, records with a key less than that.
    """

    split: str
    slides: Sequence[Source]
    counts: np.ndarray
    runs: Sequence[Path]
    cuts: np.ndarray
    keys: np.ndarray
    before: np.ndarray

    @property
    def shards(self) -> int:
        """How many."""
        return len(self.keys)

    @cached_property
    def whose(self) -> list[bytes]:
        """What is appended to the records of each slide."""
        return [source.whose for source in self.slides]

    def rows(self, shard: int) -> np.ndarray:
        """Return the rows of a shard in the order of its records: (4, n) uint64."""
        low = self.keys[shard]
        high = self.keys[shard + 1] if shard + 1 < self.shards else LARGEST
        parts = [np.empty((4, 0), np.uint64)]
        for run in self.runs:
            rows = np.load(run, mmap_mode="r")
            begin = np.searchsorted(rows[KEY], low, "left")
            end = np.searchsorted(rows[KEY], high, "right")
            parts.append(np.array(rows[:, begin:end]))
        found = np.concatenate(parts, axis=1)
        # Should two records have one key, their places decide, and a shard may begin between them.
        order = np.lexsort((found[OFFSET], found[SLIDE], found[KEY]))
        begin = self.cuts[shard] - self.before[shard]
        return found[:, order[begin : begin + self.cuts[shard + 1] - self.cuts[shard]]]


def make_plan(
    world: World, split: str, slides: Sequence[Source], settings: ShardSettings, folder: Path
) -> Plan:
    """Make the plan of a split, together with the other ranks.

    Args:
        world: the ranks.
        split: its name.
        slides: of the split, in an order that does not depend on chance.
        settings: wanted size of a shard, and the seed of the shuffle.
        folder: for the runs, seen by all ranks.

    Raises:
        UserError: every record file that is missing, has a damaged header or first record, or is
            of another slide.
    """
    sizes = world.on_rank0(partial(_sizes, slides))
    scan = _Scan(slides, _part(sizes, world), settings.seed, world.report_progress)
    rows = scan.runs()
    names: list[str] = []
    # One run of each rank, then a meeting: whoever waits, waits for one run and not for a cohort.
    while True:
        name = f"{split}-{len(names):06d}-{world.rank:06d}.npy"
        found = world.gather(partial(_write_next, rows, folder / name))
        written = [one for one in found if one is not None]
        if not written:
            break
        names += written
    faults = [fault for part in world.gather(lambda: scan.faults) for fault in part]
    if faults:
        world.on_rank0(partial(_refuse, split, faults))
    counts = world.sum(scan.counts)
    total, number = int(counts.sum()), 1
    if total:
        more = np.array([len(source.whose) for source in slides], np.int64)
        size = int(sizes.sum() + (counts * more).sum())
        number = max(1, min(total, round(size / (settings.target_mb * 1e6))))
    # A record's key does not depend on the other slides, so a slide more or less changes the
    # shards by its own records and by where they are cut.
    cuts = np.arange(number + 1) * total // number
    mine = [folder / name for name in names if name.endswith(f"-{world.rank:06d}.npy")]
    keys, before = _keys_at(world, mine, cuts[:-1])
    return Plan(split, slides, counts, [folder / name for name in names], cuts, keys, before)


def _sizes(slides: Sequence[Source]) -> np.ndarray:
    missing = [source.records for source in slides if not source.records.is_file()]
    if missing:
        faults = [f"{path}: no such record file" for path in missing]
        raise UserError(faults[0]) if len(faults) == 1 else all_faults("missing files", faults)
    return np.array([source.records.stat().st_size for source in slides], np.int64)


def _part(sizes: np.ndarray, world: World) -> list[int]:
    """Return the numbers of the slides that this rank scans: about its share of the bytes."""
    middles = np.cumsum(sizes) - sizes / 2
    owners = middles * world.size // max(1, int(sizes.sum()))
    return np.flatnonzero(np.minimum(owners, world.size - 1) == world.rank).tolist()


class _Scan:
    """Goes through the record files of some slides and makes rows of their records.

    Attributes:
        counts: (slides,) int64, the records found so far.
        faults: of files that cannot be used; the others are scanned all the same.
    """

    def __init__(
        self,
        slides: Sequence[Source],
        mine: Sequence[int],
        seed: int,
        report_progress: Callable[[str], None],
    ) -> None:
        self._slides, self._mine, self._seed = slides, mine, seed
        self._report_progress = report_progress
        self.counts = np.zeros(len(slides), np.int64)
        self.faults: list[str] = []

    def runs(self) -> Iterator[np.ndarray]:
        """Yield the rows, at most `RUN` at a time: (4, n) uint64, sorted by key."""
        waiting = np.empty((4, 0), np.uint64)
        for number in self._mine:
            try:
                rows = self._rows(number)
            except UserError as fault:
                self.faults.append(str(fault))
                continue
            self.counts[number] = rows.shape[1]
            self._report_progress(f"after the headers of {self._slides[number].records}")
            waiting = np.concatenate([waiting, rows], axis=1)
            while waiting.shape[1] >= RUN:
                yield _sorted(waiting[:, :RUN])
                waiting = waiting[:, RUN:]
        if waiting.shape[1]:
            yield _sorted(waiting)

    def _rows(self, number: int) -> np.ndarray:
        source = self._slides[number]
        offsets = record_offsets(source.records)
        if len(offsets):
            _check_whose(source)
        size = source.records.stat().st_size
        rows = np.empty((4, len(offsets)), np.uint64)
        key = key64("shards", self._seed, source.slide)
        rows[KEY] = random64(key, np.arange(len(offsets)))
        rows[SLIDE] = number
        rows[OFFSET] = offsets
        rows[LENGTH] = np.diff(offsets, append=size)
        return rows


def _check_whose(source: Source) -> None:
    # All records of a slide were written at once, so the first one speaks for them.
    with source.records.open("rb", buffering=0) as handle:
        holds, whose = "the volume of case", case_of(handle.fileno(), 0, source.records)
        if whose is None:
            holds = "tiles of slide"
            whose = next(read_tiles(source.records)).slide
    if whose != source.slide:
        raise UserError(
            f"{source.records}: holds {holds} {whose!r}, not of {source.slide!r}; delete the file "
            "to have it remade"
        )


def _sorted(rows: np.ndarray) -> np.ndarray:
    return rows[:, np.argsort(rows[KEY], kind="stable")]


def _write_next(runs: Iterator[np.ndarray], path: Path) -> str | None:
    rows = next(runs, None)
    if rows is None:
        return None
    np.save(path, rows)
    return path.name


def _refuse(split: str, faults: Sequence[str]) -> None:
    if len(faults) == 1:
        raise UserError(faults[0])
    raise all_faults(f"{split}: {len(faults)} record files cannot be used", faults)


def _keys_at(
    world: World, mine: Sequence[Path], positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys at positions in the order of all keys, and how many keys are less than each.

    The key at a position is the largest number that no more keys are less than. Its hexadecimal
    digits are found from the first to the last, each by one count over all ranks.

    Args:
        world: the ranks.
        mine: the runs of this one.
        positions: (n,) int64.
    """
    keys = np.zeros(len(positions), np.uint64)
    for shift in range(60, -1, -4):
        with_digit = keys[:, None] | np.arange(1, 16, dtype=np.uint64) << np.uint64(shift)
        fits = world.sum(_less(mine, with_digit)) <= positions[:, None]
        keys |= fits.sum(axis=1).astype(np.uint64) << np.uint64(shift)
    return keys, world.sum(_less(mine, keys))


def _less(runs: Sequence[Path], keys: np.ndarray) -> np.ndarray:
    """Count the rows with a lesser key than each of `keys`; int64 of the same shape."""
    found = np.zeros(keys.shape, np.int64)
    for run in runs:
        # Opened anew each time: what of a file was looked at would else stay in memory.
        found += np.searchsorted(np.load(run, mmap_mode="r")[KEY], keys, "left")
    return found
