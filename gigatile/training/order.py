"""Which sample is shown when: a pure function of the data, the settings, the seed and the epoch.

An epoch goes through the shards in an order of its own. A few shards at a time are a window, within
which records are shuffled at random: what is read lies close together, and the records of a shard,
which are of many slides already, are spread over as many batches as the window has. Any place of an
epoch can be found without going through those before it: a window follows from its number.

Batches are of all ranks together. A rank takes its equal part of each, so that every rank has as
many steps as every other and the batches are the same for any number of ranks.
"""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from gigatile.records.shuffle import key64, permutation, random64
from gigatile.settings.train import VIEWS


@dataclass(frozen=True)
class Sampling:
    """What decides the order of every epoch.

    Attributes:
        counts: (shards, classes) int64, the records of each class in each shard.
        seed: of every random choice.
        window: most shards that are shuffled together; `window_cuts` makes windows of even size.
        boost: for each class how often an epoch shows each of its records; a fraction a/b is a
            times in any b epochs in a row. Empty: once.
        views: numbers of `VIEWS`; an epoch shows each record once under each. Empty: once, under
            one that is random.
    """

    counts: np.ndarray
    seed: int
    window: int
    boost: tuple[Fraction, ...] = ()
    views: tuple[int, ...] = ()


@dataclass(frozen=True)
class Samples:
    """Some places of an epoch.

    Attributes:
        records: (n,) int64, the records' numbers in their split, in the order of the manifest.
        views: (n,) int64, numbers of `VIEWS`.
        draws: (n,) uint64, a random number for each place: what else is random of it follows.
    """

    records: np.ndarray
    views: np.ndarray
    draws: np.ndarray

    def __getitem__(self, places: slice) -> "Samples":
        return Samples(self.records[places], self.views[places], self.draws[places])


@dataclass(frozen=True)
class BatchSlice:
    """A rank's part of one global batch.

    Attributes:
        samples: batch_size / ranks of them.
        weights: (batch_size / ranks,) float32; 0 marks a sample that only fills the last batch.
        total: the sum of the weights over all ranks: how many samples the global batch shows.
    """

    samples: Samples
    weights: np.ndarray
    total: int


class Epoch:
    """The samples of one epoch in their order; `len` is how many there are."""

    def __init__(
        self, sampling: Sampling, epoch: int, classes_of: Callable[[int], np.ndarray]
    ) -> None:
        """Lay out an epoch; no record is looked at yet.

        Args:
            sampling: what decides the order.
            epoch: its number, from 0.
            classes_of: returns the classes of a shard's records, (n,) of integers. Called only
                where a class is boosted.
        """
        self._sampling, self._epoch, self._classes_of = sampling, epoch, classes_of
        counts, seed = np.asarray(sampling.counts, np.int64), sampling.seed
        self._starts = np.concatenate([[0], np.cumsum(counts.sum(axis=1))])
        shown = counts.sum(axis=1)
        if sampling.boost:
            shown = np.zeros(len(counts), np.int64)
            for number, weight in enumerate(sampling.boost):
                begun = self._begun(number, weight)
                n = counts[:, number]
                # Hermite's identity: what `_times` adds up to over the n records.
                shown += n * (begun + 1) * weight.numerator // weight.denominator
                shown -= n * begun * weight.numerator // weight.denominator
        passes = max(1, len(sampling.views))
        cuts = window_cuts(len(counts), sampling.window)
        self._windows = [
            (turn, shards[first:last])
            for turn in range(passes)
            for shards in [permutation(len(counts), "shards", seed, epoch, turn)]
            for first, last in itertools.pairwise(cuts)
        ]
        self._ends = np.cumsum([shown[shards].sum() for _, shards in self._windows])
        # Batches that cross from one window into the next need both.
        self._window = functools.lru_cache(maxsize=2)(self._shuffled)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def samples(self, first: int, last: int) -> Samples:
        """Return the samples at places `first` … `last` - 1; after the last comes the first."""
        found = [Samples(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64))]
        while first < last:
            place = first % len(self)
            number = int(np.searchsorted(self._ends, place, side="right"))
            begin, end = int(self._ends[number - 1]) if number else 0, int(self._ends[number])
            taken = slice(place - begin, min(place + last - first, end) - begin)
            found.append(self._window(number)[taken])
            first += taken.stop - taken.start
        return Samples(
            np.concatenate([part.records for part in found]),
            np.concatenate([part.views for part in found]),
            np.concatenate([part.draws for part in found]),
        )

    def _begun(self, number: int, weight: Fraction) -> np.ndarray:
        """Return at which epoch of a fraction's cycle each shard is: (shards,) int64.

        They begin at random ones, so that not all shards show the odd record in the same epoch.
        """
        shards = np.arange(len(self._sampling.counts))
        random = random64(key64("boost", self._sampling.seed, number), shards)
        ahead = (random % np.uint64(weight.denominator)).astype(np.int64)
        return (self._epoch + ahead) % weight.denominator

    def _times(self, shard: int, records: np.ndarray) -> np.ndarray:
        """Return how often this epoch shows each record of a shard: (n,) int64.

        With weight w and at epoch e of its cycle, record j of n in a random order is shown
        floor((e + 1) w + j / n) - floor(e w + j / n) times.
        """
        classes = np.asarray(self._classes_of(shard))
        times = np.ones(len(records), np.int64)
        for number, weight in enumerate(self._sampling.boost):
            (mine,) = np.nonzero(classes == number)
            random = random64(key64("turn", self._sampling.seed, number), records[mine])
            phase = np.empty(len(mine), np.int64)
            phase[np.argsort(random, kind="stable")] = np.arange(len(mine))
            a, b, n = weight.numerator, weight.denominator, len(mine)
            begun = int(self._begun(number, weight)[shard])
            after, before = ((e * a * n + phase * b) // (b * n) for e in (begun + 1, begun))
            times[mine] = after - before
        return times

    def _shuffled(self, number: int) -> Samples:
        """Return a window in its order."""
        sampling, epoch = self._sampling, self._epoch
        turn, shards = self._windows[number]
        records, occurrences = [], []
        for shard in shards:
            mine = np.arange(self._starts[shard], self._starts[shard + 1])
            times = self._times(shard, mine) if sampling.boost else np.ones(len(mine), np.int64)
            records.append(np.repeat(mine, times))
            firsts = np.cumsum(times) - times
            occurrences.append(np.arange(times.sum()) - np.repeat(firsts, times))
        order = permutation(sum(map(len, records)), "records", sampling.seed, epoch, number)
        record, occurrence = np.concatenate(records)[order], np.concatenate(occurrences)[order]
        counter = record + occurrence * int(self._starts[-1])
        draws = random64(key64("views", sampling.seed, epoch), counter)
        if not sampling.views:
            return Samples(record, (draws % np.uint64(len(VIEWS))).astype(np.int64), draws)
        # Another one of a record's views in each pass, so that they come far apart.
        first = random64(key64("first view", sampling.seed, epoch), record)
        turns = (first + np.uint64(turn)) % np.uint64(len(sampling.views))
        return Samples(record, np.array(sampling.views, np.int64)[turns.astype(np.int64)], draws)

    def steps(self, batch_size: int) -> int:
        """Return the number of global batches that show the epoch; the same on every rank."""
        return -(-len(self) // batch_size)

    def batch(self, step: int, batch_size: int, rank: int, ranks: int) -> BatchSlice:
        """Return a rank's part of global batch `step`.

        The last batch is filled with samples from the beginning of the epoch at weight 0: every
        sample counts once, and every batch has the same shape.

        Args:
            step: 0 … steps - 1.
            batch_size: of all ranks together; a multiple of `ranks`.
            rank, ranks: which part, of how many.
        """
        if batch_size % ranks:
            raise ValueError(f"batch_size {batch_size} is no multiple of {ranks} ranks")
        share = batch_size // ranks
        first = step * batch_size + rank * share
        return BatchSlice(
            samples=self.samples(first, first + share),
            weights=(first + np.arange(share) < len(self)).astype(np.float32),
            total=min(batch_size, len(self) - step * batch_size),
        )


def window_cuts(shards: int, window: int) -> list[int]:
    """Return where an epoch's windows begin, and where the last one ends.

    As few windows as can be, of sizes that differ by one at most: a last window of what is left
    over could be a single shard, whose records would then hardly be mixed.

    Args:
        shards: of the split.
        window: most shards in one window.
    """
    windows = -(-shards // window)
    return [number * shards // windows for number in range(windows + 1)] if windows else [0]


def window_of(shuffle_mb: float, shards_bytes: int, shards: int) -> int:
    """Return how many shards are shuffled together, of which `shuffle_mb` megabytes shall be."""
    return max(1, int(shuffle_mb * 1e6 / max(1.0, shards_bytes / shards)))


def show(image: np.ndarray, view: int) -> np.ndarray:
    """Return a square image, (side, side, channels), under one of eight views; 0 is as it is."""
    turned = np.rot90(image, view % 4)
    return turned[:, ::-1] if view >= 4 else turned
