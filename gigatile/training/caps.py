"""Caps: the most records of a slide and of a patient that an epoch shows, in turn."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Rational

import numpy as np

from gigatile.records.shuffle import key64, random64


@dataclass(frozen=True)
class Shares:
    """How many records of each slide an epoch shows, on average.

    A slide's records are on a ring, in random order. An epoch shows those that follow the ones of
    the epoch before: over any number of epochs, each is shown as often as any other of its slide,
    give or take one.

    Attributes:
        slides: (records,) int32, the number of the slide of each record.
        positions: (records,) int32, of each record on the ring of its slide.
        sizes: (slides,) int64, the records of each slide.
        numerators, denominators: (slides,) int64, of the average number that an epoch shows.
        turns: (slides,) int64, less than the denominators; with a fraction of a record as average,
            they decide which epochs show one more.
    """

    slides: np.ndarray
    positions: np.ndarray
    sizes: np.ndarray
    numerators: np.ndarray
    denominators: np.ndarray
    turns: np.ndarray

    def repetitions(self, epoch: int, records: slice = slice(None)) -> np.ndarray:
        """Return how often an epoch shows each of some records: (n,) int64."""
        begin, end = self._begin(epoch), self._begin(epoch + 1)
        slides, positions = self.slides[records], self.positions[records]
        sizes = self.sizes[slides]
        # The numbers in [begin, end) that lead to the position, on a ring of that size.
        return (end[slides] - 1 - positions) // sizes - (begin[slides] - 1 - positions) // sizes

    def _begin(self, epoch: int) -> np.ndarray:
        """Return how many records of each slide all earlier epochs have shown: (slides,) int64."""
        return (epoch * self.numerators + self.turns) // self.denominators


class Caps:
    """The caps of a training, for the slides of its records."""

    def __init__(
        self,
        slides: np.ndarray,
        patients: np.ndarray,
        labels: np.ndarray,
        per_slide: int | None,
        per_patient: int | None,
    ) -> None:
        """Decide how many records of each slide an epoch shows.

        If a patient has more than `per_patient`, all slides show equally many, except that a small
        one shows all of its records. Slides show the remaining records in turn.

        Args:
            slides, patients: (records,) numbers that identify them.
            labels: (records,) the class of each record, which is that of its slide.
            per_slide, per_patient: the most records in an epoch; None: all.
        """
        _, firsts, numbers, sizes = np.unique(
            slides, return_index=True, return_inverse=True, return_counts=True
        )
        self._slides, self._sizes = numbers.astype(np.int32), sizes
        self._labels = labels[firsts].tolist()
        most = sizes if per_slide is None else np.minimum(sizes, per_slide)
        self._counts = [Fraction(count) for count in most.tolist()]
        self._turns = np.zeros(len(most), np.int64)
        if per_patient is not None:
            order = np.argsort(patients[firsts], kind="stable")
            bounds = np.flatnonzero(np.diff(patients[firsts][order])) + 1
            for of_patient in np.split(order, bounds):
                if most[of_patient].sum() > per_patient:
                    self._limit(of_patient, most[of_patient], per_patient)

    def _limit(self, slides: np.ndarray, sizes: np.ndarray, total: int) -> None:
        """Divide the records of a patient in an epoch among the slides, with these sizes."""
        level = _level(sizes, total)
        larger = slides[sizes > level].tolist()
        left = total - int(np.minimum(sizes, level).sum())
        for turn, slide in enumerate(larger):
            self._counts[slide] = level + Fraction(left, len(larger))
            self._turns[slide] = turn

    def class_counts(self, classes: int) -> list[Fraction]:
        """Return how many records of each class an epoch shows, on average."""
        totals = [Fraction(0)] * classes
        for label, count in zip(self._labels, self._counts, strict=True):
            totals[label] += count
        return totals

    def shares(self, boost: Sequence[Fraction], seed: int) -> Shares:
        """Return the share of each slide.

        Args:
            boost: how often the records of each class that the caps leave are shown; empty: once.
            seed: of the order of a slide's records.
        """
        averages = [
            count * boost[label] if boost else count
            for label, count in zip(self._labels, self._counts, strict=True)
        ]
        denominators = np.array([average.denominator for average in averages], np.int64)
        turns = self._turns
        if boost:
            # Slides show one more in different epochs.
            random = random64(key64("turns of slides", seed), np.arange(len(averages)))
            turns = (random % denominators.astype(np.uint64)).astype(np.int64)
        records = np.arange(len(self._slides))
        order = np.lexsort((random64(key64("rings", seed), records), self._slides))
        positions = np.empty(len(order), np.int32)
        positions[order] = records - np.repeat(np.cumsum(self._sizes) - self._sizes, self._sizes)
        return Shares(
            slides=self._slides,
            positions=positions,
            sizes=self._sizes,
            numerators=np.array([average.numerator for average in averages], np.int64),
            denominators=denominators,
            turns=turns % denominators,
        )


def class_counts(caps: Caps | None, counts: np.ndarray) -> Sequence[Rational]:
    """Return how many records of each class an epoch shows, without boost.

    Args:
        caps: of the training; None: all records are shown.
        counts: (shards, classes) int64, the records of each class in each shard.
    """
    return caps.class_counts(counts.shape[1]) if caps else counts.sum(axis=0).tolist()


def _level(sizes: np.ndarray, total: int) -> int:
    """Return the largest number to which sizes can be lowered for their sum to be at most `total`.

    Args:
        sizes: (n,) int64; their sum is larger than `total`.
        total: at least 0.
    """
    left, ascending = total, np.sort(sizes).tolist()
    for number, size in enumerate(ascending):
        if size * (len(ascending) - number) > left:
            return left // (len(ascending) - number)
        left -= size
    raise ValueError(f"a sum of {sum(ascending)} is not larger than {total}")
