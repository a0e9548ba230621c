"""The order of samples: a pure function of the data, the settings, the seed and the epoch.

Each epoch visits the shards in a new random order. Consecutive shards form a window, and records
are shuffled within their window: reads stay local, and a batch mixes the records of many shards.
The order has random access: the sample at any position of an epoch is computed without the samples
before it.

A batch is global: every rank takes an equal slice of it. So all ranks run the same number of steps,
and the batches do not depend on the number of ranks.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from gigatile.records.shuffle import key64, permutation, random64
from gigatile.settings.view_names import VIEWS
from gigatile.training.caps import Shares


@dataclass(frozen=True)
class Sampling:
    """What the order of the samples depends on.

    Attributes:
        counts: (shards, classes) int64, the records of each class in each shard.
        seed: of all random numbers.
        window: maximum number of shards per window; `window_bounds` makes windows of even size.
        boost: repetitions per epoch of the records of each class. A fraction a/b shows a record a
            times in any b consecutive epochs. Empty: 1 for all classes.
        views: indices of `VIEWS`. An epoch shows each record once in each of these views. Empty:
            once, in a random view.
        shares: how many records of each slide an epoch shows, in place of `boost`; None: all.
    """

    counts: np.ndarray
    seed: int
    window: int
    boost: tuple[Fraction, ...] = ()
    views: tuple[int, ...] = ()
    shares: Shares | None = None


@dataclass(frozen=True)
class Samples:
    """Consecutive samples of an epoch.

    Attributes:
        records: (n,) int64, indices of the records in their split, in the order of the manifest.
        views: (n,) int64, indices of `VIEWS`.
        seeds: (n,) uint64, a random number for each sample; seeds its augmentation.
    """

    records: np.ndarray
    views: np.ndarray
    seeds: np.ndarray

    def __getitem__(self, part: slice) -> "Samples":
        return Samples(self.records[part], self.views[part], self.seeds[part])


def joined(parts: Sequence[Samples]) -> Samples:
    """Return the samples of several parts, one after the other."""
    return Samples(
        np.concatenate([np.empty(0, np.int64), *(part.records for part in parts)]),
        np.concatenate([np.empty(0, np.int64), *(part.views for part in parts)]),
        np.concatenate([np.empty(0, np.uint64), *(part.seeds for part in parts)]),
    )


@dataclass(frozen=True)
class BatchSlice:
    """A rank's slice of a global batch.

    Attributes:
        samples: batch_size / ranks samples.
        weights: (batch_size / ranks,) float32; 0 for padding of the last batch.
        total: the sum of the weights over all ranks, which is the number of samples that count.
    """

    samples: Samples
    weights: np.ndarray
    total: int


class Epoch:
    """The samples of one epoch in their order. `len` gives their number."""

    def __init__(
        self, sampling: Sampling, epoch: int, classes_of: Callable[[int], np.ndarray]
    ) -> None:
        """Compute the windows of an epoch. No record is read.

        Args:
            sampling: what the order depends on.
            epoch: index of the epoch, from 0.
            classes_of: returns the classes of a shard's records, (n,) integers. Only called if a
                class is boosted.
        """
        self._sampling, self._epoch, self._classes_of = sampling, epoch, classes_of
        counts, seed = np.asarray(sampling.counts, np.int64), sampling.seed
        self._starts = np.concatenate([[0], np.cumsum(counts.sum(axis=1))])
        shown = counts.sum(axis=1)
        if sampling.shares:
            totals = np.append(0, np.cumsum(sampling.shares.repetitions(epoch)))
            shown = np.diff(totals[self._starts])
        elif sampling.boost:
            shown = np.zeros(len(counts), np.int64)
            for number, weight in enumerate(sampling.boost):
                cycle = self._cycle_position(number, weight)
                n = counts[:, number]
                # The sum of `_repetitions` over the n records, by Hermite's identity.
                shown += n * (cycle + 1) * weight.numerator // weight.denominator
                shown -= n * cycle * weight.numerator // weight.denominator
        passes = max(1, len(sampling.views))
        bounds = window_bounds(len(counts), sampling.window)
        self._windows = [
            (number, shards[first:last])
            for number in range(passes)
            for shards in [permutation(len(counts), "shards", seed, epoch, number)]
            for first, last in itertools.pairwise(bounds)
        ]
        self._ends = np.cumsum([shown[shards].sum() for _, shards in self._windows])
        # A batch that crosses the boundary between two windows needs both, and so may one that is
        # read ahead.
        self._window = functools.lru_cache(maxsize=4)(self._shuffled_window)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def samples(self, first: int, last: int) -> Samples:
        """Return the samples at positions `first` to `last` - 1, modulo the length of the epoch."""
        parts = []
        while first < last:
            position = first % len(self)
            window = int(np.searchsorted(self._ends, position, side="right"))
            begin, end = int(self._ends[window - 1]) if window else 0, int(self._ends[window])
            part = slice(position - begin, min(position + last - first, end) - begin)
            parts.append(self._window(window)[part])
            first += part.stop - part.start
        return joined(parts)

    def _cycle_position(self, number: int, weight: Fraction) -> np.ndarray:
        """Return the position of each shard in the cycle of a fraction: (shards,) int64.

        The shards start at random positions, so that they do not all show their extra records in
        the same epoch.
        """
        shards = np.arange(len(self._sampling.counts))
        random = random64(key64("boost", self._sampling.seed, number), shards)
        start = (random % np.uint64(weight.denominator)).astype(np.int64)
        return (self._epoch + start) % weight.denominator

    def _repetitions(self, shard: int, records: np.ndarray) -> np.ndarray:
        """Return how often this epoch shows each record of a shard: (n,) int64.

        With a boost of w, at position e of the cycle, record j of n in random order is shown
        floor((e + 1) w + j / n) - floor(e w + j / n) times.
        """
        if self._sampling.shares:
            part = slice(self._starts[shard], self._starts[shard + 1])
            return self._sampling.shares.repetitions(self._epoch, part)
        repetitions = np.ones(len(records), np.int64)
        if not self._sampling.boost:
            return repetitions
        classes = np.asarray(self._classes_of(shard))
        for number, weight in enumerate(self._sampling.boost):
            (of_class,) = np.nonzero(classes == number)
            random = random64(key64("turn", self._sampling.seed, number), records[of_class])
            rank = np.empty(len(of_class), np.int64)
            rank[np.argsort(random, kind="stable")] = np.arange(len(of_class))
            a, b, n = weight.numerator, weight.denominator, len(of_class)
            cycle = int(self._cycle_position(number, weight)[shard])
            after, before = ((e * a * n + rank * b) // (b * n) for e in (cycle + 1, cycle))
            repetitions[of_class] = after - before
        return repetitions

    def _shuffled_window(self, window: int) -> Samples:
        """Return the samples of a window in their order."""
        sampling, epoch = self._sampling, self._epoch
        pass_number, shards = self._windows[window]
        records, occurrences = [], []
        for shard in shards:
            own = np.arange(self._starts[shard], self._starts[shard + 1])
            repeat = self._repetitions(shard, own)
            records.append(np.repeat(own, repeat))
            firsts = np.cumsum(repeat) - repeat
            occurrences.append(np.arange(repeat.sum()) - np.repeat(firsts, repeat))
        order = permutation(sum(map(len, records)), "records", sampling.seed, epoch, window)
        record, occurrence = np.concatenate(records)[order], np.concatenate(occurrences)[order]
        counter = record + occurrence * int(self._starts[-1])
        seeds = random64(key64("views", sampling.seed, epoch), counter)
        if not sampling.views:
            return Samples(record, (seeds % np.uint64(len(VIEWS))).astype(np.int64), seeds)
        # Each pass shows a record in another view, so that its views are far apart in the epoch.
        first = random64(key64("first view", sampling.seed, epoch), record)
        view = (first + np.uint64(pass_number)) % np.uint64(len(sampling.views))
        return Samples(record, np.array(sampling.views, np.int64)[view.astype(np.int64)], seeds)

    def steps(self, batch_size: int) -> int:
        """Return the number of global batches of the epoch, which is the same on every rank."""
        return -(-len(self) // batch_size)

    def batch(self, step: int, batch_size: int, rank: int, ranks: int) -> BatchSlice:
        """Return a rank's slice of global batch `step`.

        The last batch is padded with samples from the start of the epoch, with weight 0. So every
        sample counts once, and all batches have the same shape.

        Args:
            step: 0 to steps - 1.
            batch_size: over all ranks; a multiple of `ranks`.
            rank, ranks: which slice, of how many.
        """
        if batch_size % ranks:
            raise ValueError(f"batch_size {batch_size} is not a multiple of {ranks} ranks")
        share = batch_size // ranks
        first = step * batch_size + rank * share
        return BatchSlice(
            samples=self.samples(first, first + share),
            weights=(first + np.arange(share) < len(self)).astype(np.float32),
            total=min(batch_size, len(self) - step * batch_size),
        )


def window_bounds(shards: int, window: int) -> list[int]:
    """Return the index of the first shard of each window, and the number of shards.

    The fewest windows possible, with sizes that differ by at most one. If all windows but the last
    were full, the last one could be a single shard, and its records would hardly be mixed.

    Args:
        shards: number of shards of the split.
        window: maximum number of shards per window.
    """
    windows = -(-shards // window)
    return [number * shards // windows for number in range(windows + 1)] if windows else [0]


def window_size(shuffle_mb: float, shards_bytes: int, shards: int) -> int:
    """Return how many shards together have about `shuffle_mb` megabytes; at least 1."""
    return max(1, int(shuffle_mb * 1e6 / max(1.0, shards_bytes / shards)))
