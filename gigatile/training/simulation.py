"""Simulate the sample order of an epoch: how well it shuffles, and how many shards it reads."""

from dataclasses import dataclass

import numpy as np

from gigatile.training.sample_order import Epoch, Sampling


@dataclass(frozen=True)
class Simulation:
    """Measures of the sample order of one epoch.

    Attributes:
        samples: number of samples of the epoch.
        steps: number of global batches.
        min_shown, max_shown: how often a record is shown.
        distance: mean distance in the epoch, in samples, of two neighbouring records of a file.
        distance_ideal: the same for a perfect shuffle.
        same_batch: fraction of such neighbours that are in the same batch.
        same_batch_ideal: the same for a perfect shuffle.
        shards_per_step: mean number of shards that a global batch is read from.
    """

    samples: int
    steps: int
    min_shown: int
    max_shown: int
    distance: float
    distance_ideal: float
    same_batch: float
    same_batch_ideal: float
    shards_per_step: float


def simulate(sampling: Sampling, batch_size: int, epoch: int = 0) -> Simulation:
    """Simulate an epoch of records of one class.

    In a perfect shuffle of n samples, two samples are (n + 1) / 3 apart on average, and in the same
    batch of b with probability (b - 1) / (n - 1).
    """
    shard_sizes = sampling.counts.sum(axis=1)
    layout = Epoch(sampling, epoch, lambda shard: np.zeros(shard_sizes[shard], np.int16))
    n = len(layout)
    records = layout.samples(0, n).records
    times = np.bincount(records, minlength=shard_sizes.sum())
    # The first position of each record; -1 if it is not shown.
    first = np.full(len(times), -1)
    first[records[::-1]] = np.arange(n)[::-1]
    shard_of = np.repeat(np.arange(len(shard_sizes)), shard_sizes)
    pairs = (shard_of[:-1] == shard_of[1:]) & (first[:-1] >= 0) & (first[1:] >= 0)
    left, right = first[:-1][pairs], first[1:][pairs]
    # With several views an epoch has as many passes, and all first positions are in the first.
    per_pass = n / max(1, len(sampling.views))
    batches = np.unique(np.stack([np.arange(n) // batch_size, shard_of[records]]), axis=1)
    return Simulation(
        samples=n,
        steps=layout.steps(batch_size),
        min_shown=int(times.min()),
        max_shown=int(times.max()),
        distance=float(np.abs(left - right).mean()),
        distance_ideal=(per_pass + 1) / 3,
        same_batch=float((left // batch_size == right // batch_size).mean()),
        same_batch_ideal=(batch_size - 1) / (per_pass - 1),
        shards_per_step=batches.shape[1] / layout.steps(batch_size),
    )
