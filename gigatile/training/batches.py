"""From the order of samples to batches in memory, read ahead of the model by a few threads."""

import itertools
import math
import mmap
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gigatile.training.order import BatchSlice, Epoch, Samples

# Batches that are read and decoded while the model has another one. With that one, and the next
# that stands ready, this bounds the memory of the input: AHEAD + 2 batches.
AHEAD = 4


@dataclass(frozen=True)
class Form:
    """The shape and the type of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype


class Source(Protocol):
    """Where samples come from: tiles, or patches of volumes."""

    def forms(self, record: int) -> tuple[Form, Form]:
        """Return the forms of the image and of the label of any sample, as one record has them.

        Raises:
            RecordError: the record is damaged.
        """

    def fill(self, samples: Samples, images: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        """Put samples into arrays, image and label of each; safe from several threads.

        Returns:
            The seconds that reading took, and those of making arrays of what was read.

        Raises:
            RecordError: a record is damaged, or of another form.
        """


@dataclass(frozen=True)
class Batch:
    """A rank's part of a global batch.

    Attributes:
        images, labels: (n, …), of the forms that the source has.
        weights: (n,) float32.
        total: samples that the global batch shows, over all ranks.
        read_seconds: that threads took to read its records and verify their checksums.
        decode_seconds: that threads took to decode its images and show them in another way.
    """

    images: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    total: int
    read_seconds: float
    decode_seconds: float


def batches(
    source: Source,
    epoch: Epoch,
    batch_size: int,
    rank: int,
    ranks: int,
    threads: int,
    steps: range | None = None,
) -> Iterator[Batch]:
    """Yield a rank's batches of some steps of one epoch, in order.

    Args:
        source: of the samples.
        epoch: which of them is shown when, and how.
        batch_size: of all ranks together.
        rank, ranks: which part of each batch, of how many.
        threads: cores to decode on.
        steps: which of the epoch's batches; None: all.

    Reading and decoding release the interpreter's lock, so `threads` of them use as many cores; the
    result does not depend on their number.

    Raises:
        RecordError: a record is damaged, or of another form than the first.
    """
    steps = range(epoch.steps(batch_size)) if steps is None else steps
    if not steps:
        return
    slices = (epoch.batch(step, batch_size, rank, ranks) for step in steps)
    first = epoch.batch(steps[0], batch_size, rank, ranks).samples.records[0]
    share = batch_size // ranks
    memories = [BatchMemory((share, *form.shape), form.dtype) for form in source.forms(int(first))]
    # A batch is cut such that those that are ahead keep every thread at work.
    parts = -(-threads // AHEAD)
    waiting: deque[_Begun] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for wanted in slices:
                arrays = [memory.take() for memory in memories]
                waiting.append(_begin(pool, parts, source, wanted, *arrays))
                if len(waiting) > AHEAD:
                    yield waiting.popleft().finished()
            while waiting:
                yield waiting.popleft().finished()
        finally:
            for unneeded in waiting:
                unneeded.cancel()


@dataclass(frozen=True)
class _Begun:
    """A batch that is being filled in, part by part."""

    wanted: BatchSlice
    images: np.ndarray
    labels: np.ndarray
    filling: list[Future[tuple[float, float]]]

    def finished(self) -> Batch:
        seconds = [part.result() for part in self.filling]
        return Batch(
            images=self.images,
            labels=self.labels,
            weights=self.wanted.weights,
            total=self.wanted.total,
            read_seconds=sum(read for read, _ in seconds),
            decode_seconds=sum(decode for _, decode in seconds),
        )

    def cancel(self) -> None:
        for part in self.filling:
            part.cancel()


class BatchMemory:
    """Arrays of one form; the memory of one that nobody refers to any more is used again.

    New memory is slow: the system fills it with zeros, page by page, which takes a quarter of the
    time that decoding into it takes.
    """

    def __init__(self, shape: tuple[int, ...], dtype: type | np.dtype = np.uint8) -> None:
        self._shape, self._dtype = shape, np.dtype(dtype)
        self._free: deque[mmap.mmap] = deque()

    def take(self) -> np.ndarray:
        """Return an array, its content by chance."""
        memory = self._free.pop() if self._free else self._new()
        # What is made of a part of this array refers to it, as its memory is no array itself.
        array = np.ndarray(self._shape, self._dtype, memory)
        weakref.finalize(array, self._free.append, memory).atexit = False
        return array

    def _new(self) -> mmap.mmap:
        size = math.prod(self._shape) * self._dtype.itemsize
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        return memory


def _begin(
    pool: ThreadPoolExecutor,
    parts: int,
    source: Source,
    wanted: BatchSlice,
    images: np.ndarray,
    labels: np.ndarray,
) -> _Begun:
    cuts = np.arange(parts + 1) * len(images) // parts
    slices = [slice(first, last) for first, last in itertools.pairwise(cuts.tolist())]
    filling = [
        pool.submit(source.fill, wanted.samples[part], images[part], labels[part])
        for part in slices
    ]
    return _Begun(wanted, images, labels, filling)
