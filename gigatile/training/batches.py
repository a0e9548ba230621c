"""From the order of samples to decoded batches, read ahead of the model by a few threads."""

import itertools
import math
import mmap
import time
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from gigatile.records.shards import ShardReader
from gigatile.records.tile import decode_jpeg, jpeg_shape
from gigatile.training.order import BatchSlice, Epoch, Samples, show

# Batches that are read and decoded while the model has another one. With that one, and the next
# that stands ready, this bounds the memory of the input: AHEAD + 2 batches of pixels.
AHEAD = 4


@dataclass(frozen=True)
class Batch:
    """A rank's part of a global batch, decoded.

    Attributes:
        images: (n, height, width, 3) uint8.
        labels: (n,) int32, numbers of the classes.
        weights: (n,) float32.
        total: samples that the global batch shows, over all ranks.
        read_seconds: that threads took to read its records and verify their checksums.
        decode_seconds: that threads took to decode its images and lay them out under their views.
    """

    images: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    total: int
    read_seconds: float
    decode_seconds: float


def batches(
    reader: ShardReader,
    epoch: Epoch,
    batch_size: int,
    rank: int,
    ranks: int,
    threads: int,
    steps: range | None = None,
) -> Iterator[Batch]:
    """Yield a rank's batches of some steps of one epoch, in order.

    Args:
        reader: the samples.
        epoch: which of them is shown when, and under which view.
        batch_size: of all ranks together.
        rank, ranks: which part of each batch, of how many.
        threads: cores to decode on.
        steps: which of the epoch's batches; None: all.

    Reading and decoding release the interpreter's lock, so `threads` of them use as many cores; the
    result does not depend on their number.

    Raises:
        RecordError: a record is damaged, or its image is, or is of another size than the first.
    """
    steps = range(epoch.steps(batch_size)) if steps is None else steps
    if not steps:
        return
    slices = (epoch.batch(step, batch_size, rank, ranks) for step in steps)
    first = epoch.batch(steps[0], batch_size, rank, ranks).samples.records[0]
    arrays = BatchMemory((batch_size // ranks, *_shape(reader, int(first))))
    # A batch is cut such that those that are ahead keep every thread at work.
    parts = -(-threads // AHEAD)
    waiting: deque[_Begun] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for wanted in slices:
                waiting.append(_begin(pool, parts, reader, wanted, arrays.take()))
                if len(waiting) > AHEAD:
                    yield waiting.popleft().finished()
            while waiting:
                yield waiting.popleft().finished()
        finally:
            for unneeded in waiting:
                unneeded.cancel()


@dataclass(frozen=True)
class _Begun:
    """A batch whose images are being filled in, part by part."""

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
    """Arrays of one shape, uint8; the memory of one that nobody refers to any more is used again.

    New memory is slow: the system fills it with zeros, page by page, which takes a quarter of the
    time that decoding into it takes.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._free: deque[mmap.mmap] = deque()

    def take(self) -> np.ndarray:
        """Return an array, its content by chance."""
        memory = self._free.pop() if self._free else self._new()
        # What is made of a part of this array refers to it, as its memory is no array itself.
        array = np.ndarray(self._shape, np.uint8, memory)
        weakref.finalize(array, self._free.append, memory).atexit = False
        return array

    def _new(self) -> mmap.mmap:
        memory = mmap.mmap(-1, math.prod(self._shape), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        return memory


def _begin(
    pool: ThreadPoolExecutor,
    parts: int,
    reader: ShardReader,
    wanted: BatchSlice,
    images: np.ndarray,
) -> _Begun:
    samples = wanted.samples
    cuts = np.arange(parts + 1) * len(images) // parts
    return _Begun(
        wanted,
        images,
        reader.classes_at(samples.records),
        [
            pool.submit(
                _fill,
                images[first:last],
                reader,
                Samples(samples.records[first:last], samples.views[first:last]),
            )
            for first, last in itertools.pairwise(cuts)
        ],
    )


def _fill(images: np.ndarray, reader: ShardReader, samples: Samples) -> tuple[float, float]:
    """Read samples and decode them into `images`; return the seconds that each of the two took."""
    begun = time.perf_counter()
    numbers = samples.records.tolist()
    files = [reader.image(number) for number in numbers]
    read = time.perf_counter()
    upright = np.empty(images.shape[1:], np.uint8)
    for image, data, view, number in zip(
        images, files, samples.views.tolist(), numbers, strict=True
    ):
        try:
            if view == 0:
                decode_jpeg(data, into=image)
            else:
                _copy(show(decode_jpeg(data, into=upright), view), image)
        except ValueError as error:
            raise reader.damaged(number, f"its image: {error}") from None
    return read - begun, time.perf_counter() - read


def _copy(shown: np.ndarray, image: np.ndarray) -> None:
    """Copy pixels, (side, side, 3), that may lie in memory in another order."""
    if shown[0].flags.c_contiguous:
        image[...] = shown
        return
    # NumPy copies triples one at a time: by colour it takes a fifth of the time.
    for colour in range(3):
        image[..., colour] = shown[..., colour]


def _shape(reader: ShardReader, number: int) -> tuple[int, int, int]:
    try:
        return jpeg_shape(reader.image(number))
    except ValueError as error:
        raise reader.damaged(number, f"its image: {error}") from None
