"""Load batches of samples into memory, ahead of the model, with a few threads."""

import contextlib
import itertools
import math
import mmap
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from keras import tree

from gigatile.training.read_ahead import FetchedSource, ReadAhead
from gigatile.training.sample_order import BatchSlice, Epoch, Samples, joined

# Batches that are loaded while the model uses another batch. Together with that one and the next,
# which is ready, this bounds the memory of the input: AHEAD + 2 batches.
AHEAD = 4

# Arrays in nested dictionaries, lists or tuples, as `keras.tree` maps them.
Arrays = Any
Specs = Any


@dataclass(frozen=True)
class ArraySpec:
    """Shape and type of an array; compare `tf.TensorSpec`."""

    shape: tuple[int, ...]
    dtype: np.dtype


class SampleSource(Protocol):
    """Reads samples: tiles, patches of volumes, bags of tiles, images with boxes and masks.

    A sample has inputs and targets. Each is an array or a nested structure of arrays. In a
    batch, their first axis is the sample.

    A source of records that may be in a store is also a `FetchedSource`.
    """

    def specs(self, samples: Samples) -> tuple[Specs, Specs]:
        """Return the specs of the inputs and of the targets of one sample, without the first axis.

        The shapes may differ between batches. If samples differ in size, the source pads all
        samples of a batch to the same shape, and adds a mask of the valid entries.

        Args:
            samples: of one batch, at least one.

        Raises:
            RecordError: a record is damaged.
        """

    def fill(self, samples: Samples, inputs: Arrays, targets: Arrays) -> tuple[float, float]:
        """Read samples into arrays. Must be thread-safe.

        The arrays hold arbitrary values before: padding must be written, too.

        Returns:
            The seconds spent on reading records, and on decoding and augmenting them.

        Raises:
            RecordError: a record is damaged, or its shape is not that of the arrays.
        """


@dataclass(frozen=True)
class Batch:
    """This rank's slice of a global batch.

    Attributes:
        inputs, targets: arrays (n, …) in the structure of `SampleSource.specs`.
        weights: (n,) float32; 0 for padding of the last batch.
        total: number of samples of the global batch, over all ranks.
        read_seconds: spent by threads on reading records and verifying checksums.
        decode_seconds: spent by threads on decoding and augmenting samples.
    """

    inputs: Arrays
    targets: Arrays
    weights: np.ndarray
    total: int
    read_seconds: float
    decode_seconds: float


def batches(
    source: SampleSource,
    epoch: Epoch,
    batch_size: int,
    rank: int,
    ranks: int,
    threads: int,
    steps: range | None = None,
) -> Iterator[Batch]:
    """Yield a rank's slices of the batches of an epoch, in order.

    Args:
        source: reads the samples.
        epoch: the order of the samples.
        batch_size: over all ranks.
        rank, ranks: which slice of each batch.
        threads: to read and decode with. Both release Python's global lock, so this many cores are
            used. The result does not depend on it.
        steps: which batches of the epoch; None: all.

    Raises:
        RecordError: a record is damaged, or its shape differs from that of its batch.
    """
    steps = range(epoch.steps(batch_size)) if steps is None else steps
    if not steps:
        return
    slices = (epoch.batch(step, batch_size, rank, ranks) for step in steps)
    memory: list[BatchMemory] = []
    # Each batch is split so that the batches in progress keep all threads busy.
    parts = -(-threads // AHEAD)
    loading: deque[_Loading] = deque()
    ahead = None
    if isinstance(source, FetchedSource) and source.in_store:

        def samples_of(numbers: range) -> Samples:
            return joined([epoch.batch(step, batch_size, rank, ranks).samples for step in numbers])

        ahead = ReadAhead(source, samples_of, steps)
    with ThreadPoolExecutor(threads) as pool:
        try:
            for batch in slices:
                loading.append(_load(pool, parts, source, batch, memory))
                if len(loading) > AHEAD:
                    yield _next(loading, ahead)
            while loading:
                yield _next(loading, ahead)
        finally:
            for unused in loading:
                unused.cancel()
            if ahead:
                ahead.close()


def _next(loading: "deque[_Loading]", ahead: ReadAhead | None) -> Batch:
    if ahead:
        ahead.begin_batch()
    return loading.popleft().result()


@dataclass(frozen=True)
class _Loading:
    """A batch that threads are filling, part by part."""

    batch: BatchSlice
    inputs: Arrays
    targets: Arrays
    parts: list[Future[tuple[float, float]]]

    def result(self) -> Batch:
        seconds = [part.result() for part in self.parts]
        return Batch(
            inputs=self.inputs,
            targets=self.targets,
            weights=self.batch.weights,
            total=self.batch.total,
            read_seconds=sum(read for read, _ in seconds),
            decode_seconds=sum(decode for _, decode in seconds),
        )

    def cancel(self) -> None:
        for part in self.parts:
            part.cancel()


class BatchMemory:
    """Memory for arrays, reused as soon as nothing refers to an array any more.

    Fresh memory is slow: the kernel zeroes it page by page, which takes a quarter of the time of
    decoding tiles into it.
    """

    def __init__(self) -> None:
        self._free: deque[mmap.mmap] = deque()

    def take(self, shape: tuple[int, ...], dtype: type | np.dtype) -> np.ndarray:
        """Return an array with arbitrary values."""
        size = max(1, math.prod(shape) * np.dtype(dtype).itemsize)
        memory = self._free.pop() if self._free else _allocate(size)
        if len(memory) < size:
            memory = _allocate(size)
        # Views of this array keep it alive, as its memory is not an array itself.
        array = np.ndarray(shape, dtype, memory)
        weakref.finalize(array, self._free.append, memory).atexit = False
        return array


def _allocate(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Kernels that were built without huge pages refuse it.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _load(
    pool: ThreadPoolExecutor,
    parts: int,
    source: SampleSource,
    batch: BatchSlice,
    memory: list[BatchMemory],
) -> _Loading:
    samples = batch.samples
    count = len(samples.records)

    specs = source.specs(samples)
    leaves = tree.flatten(specs)
    # One pool for each array of the structure: there, batches have similar sizes.
    memory.extend(BatchMemory() for _ in leaves[len(memory) :])
    arrays = [
        memory_of_leaf.take((count, *spec.shape), spec.dtype)
        for memory_of_leaf, spec in zip(memory, leaves, strict=True)
    ]
    inputs, targets = tree.pack_sequence_as(specs, arrays)
    bounds = np.arange(parts + 1) * count // parts
    loading = []
    for first, last in itertools.pairwise(bounds.tolist()):
        part = slice(first, last)
        views = tree.map_structure(lambda array, part=part: array[part], (inputs, targets))
        loading.append(pool.submit(source.fill, samples[part], *views))
    return _Loading(batch, inputs, targets, loading)
