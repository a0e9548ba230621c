"""From the order of samples to decoded batches, read ahead of the model by a few threads."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from gigatile.records.shards import ShardReader
from gigatile.training.order import BatchSlice, Epoch, show

# Batches that wait decoded for the model; this bounds the memory of the input.
AHEAD = 4


@dataclass(frozen=True)
class Batch:
    """A rank's part of a global batch, decoded.

    Attributes:
        images: (n, height, width, 3) uint8.
        labels: (n,) int32, numbers of the classes.
        weights: (n,) float32.
        total: samples that the global batch shows, over all ranks.
    """

    images: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    total: int


def batches(
    reader: ShardReader,
    epoch: Epoch,
    steps: range,
    batch_size: int,
    rank: int,
    ranks: int,
    threads: int,
) -> Iterator[Batch]:
    """Yield a rank's batches of some steps of one epoch, in order.

    Args:
        reader: the samples.
        epoch: which of them is shown when, and under which view.
        steps: which of the epoch's batches.
        batch_size: of all ranks together.
        rank, ranks: which part of each batch, of how many.
        threads: cores to decode on.

    Decoding releases the interpreter's lock, so `threads` of them use as many cores; the result
    does not depend on their number.
    """
    slices = (epoch.batch(step, batch_size, rank, ranks) for step in steps)
    waiting: deque[Future[Batch]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for part in slices:
                waiting.append(pool.submit(_load, reader, part))
                if len(waiting) > AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for unneeded in waiting:
                unneeded.cancel()


def _load(reader: ShardReader, part: BatchSlice) -> Batch:
    tiles = [reader[int(number)] for number in part.samples.records]
    classes = {label: number for number, label in enumerate(reader.classes)}
    return Batch(
        images=np.stack(
            [
                show(tile.pixels(), view)
                for tile, view in zip(tiles, part.samples.views, strict=True)
            ]
        ),
        labels=np.array([classes[tile.label] for tile in tiles], np.int32),
        weights=part.weights,
        total=part.total,
    )
