"""How well an epoch shuffles and what it reads, found by laying one out; no tile is needed."""

from dataclasses import dataclass

import numpy as np

from gigatile.training.sample_order import Epoch, Sampling


@dataclass(frozen=True)
class Simulation:
    """What an epoch does to records that lie in shards.

    Attributes:
        samples: shown in the epoch.
        steps: global batches.
        least, most: how often a record is shown.
        apart: mean distance in the epoch of two records that are neighbours in a file, in samples.
        apart_ideal: the same for an ideal shuffle of the samples.
        together: share of such neighbours that come into the same batch.
        together_ideal: the same for an ideal shuffle.
        shards_per_step: mean number of shards that a global batch is read from.
    """

    samples: int
    steps: int
    least: int
    most: int
    apart: float
    apart_ideal: float
    together: float
    together_ideal: float
    shards_per_step: float


def simulate(sampling: Sampling, batch_size: int, epoch: int = 0) -> Simulation:
    """Lay out an epoch of shards whose records are of one class, and measure it.

    An ideal shuffle puts every sample anywhere with the same chance: two places of n are
    (n + 1) / 3 apart in the mean, and in the same batch of b with chance (b - 1) / (n - 1).
    """
    of_shards = sampling.counts.sum(axis=1)
    layout = Epoch(sampling, epoch, lambda shard: np.zeros(of_shards[shard], np.int16))
    n = len(layout)
    records = layout.samples(0, n).records
    times = np.bincount(records, minlength=of_shards.sum())
    # Of a record that is shown several times, the first place.
    first = np.full(len(times), -1)
    first[records[::-1]] = np.arange(n)[::-1]
    owner = np.repeat(np.arange(len(of_shards)), of_shards)
    one, other = np.arange(len(times) - 1), np.arange(1, len(times))
    pairs = (owner[one] == owner[other]) & (first[one] >= 0) & (first[other] >= 0)
    one, other = first[one[pairs]], first[other[pairs]]
    turns = max(1, len(sampling.views))
    shown = n / turns  # the first places lie in the first of the passes
    batches = np.unique(np.stack([np.arange(n) // batch_size, owner[records]]), axis=1)
    return Simulation(
        samples=n,
        steps=layout.steps(batch_size),
        least=int(times.min()),
        most=int(times.max()),
        apart=float(np.abs(one - other).mean()),
        apart_ideal=(shown + 1) / 3,
        together=float((one // batch_size == other // batch_size).mean()),
        together_ideal=(batch_size - 1) / (shown - 1),
        shards_per_step=batches.shape[1] / layout.steps(batch_size),
    )
