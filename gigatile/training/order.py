"""Which sample is shown when: a pure function of the seed and the epoch.

Batches are of all ranks together. A rank takes its equal part of each, so that every rank has
as many steps as every other and the batches are the same for any number of ranks.
"""

from dataclasses import dataclass

import numpy as np

from gigatile.records.shuffle import key64, permutation, random64

# The symmetries of a square: rotations by 0, 90, 180 and 270 degrees, and these mirrored. Tissue
# has no up and no left, so each is as good a view of a tile as any other.
VIEWS = 8


@dataclass(frozen=True)
class BatchSlice:
    """A rank's part of one global batch.

    Attributes:
        records: (batch_size / ranks,) int64, the samples' numbers in their split.
        weights: (batch_size / ranks,) float32; 0 marks a sample that only fills the last batch.
        total: the sum of the weights over all ranks: how many samples the global batch shows.
    """

    records: np.ndarray
    weights: np.ndarray
    total: int


def epoch_order(n: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order in which an epoch shows its n samples, each once: (n,) int64."""
    return permutation(n, "order", seed, epoch)


def epoch_views(n: int, seed: int, epoch: int) -> np.ndarray:
    """Return the view under which an epoch shows each of n samples: (n,) int64 in 0 … 7.

    A view follows from the seed, the epoch and the sample alone, never from a worker's state.
    """
    return (random64(key64("views", seed, epoch), np.arange(n)) % np.uint64(VIEWS)).astype(np.int64)


def show(image: np.ndarray, view: int) -> np.ndarray:
    """Return a square image, (side, side, channels), under one of eight views; 0 is as it is."""
    turned = np.rot90(image, view % 4)
    return turned[:, ::-1] if view >= 4 else turned


def steps_per_epoch(n: int, batch_size: int) -> int:
    """Return the number of global batches that show n samples; the same on every rank."""
    return -(-n // batch_size)


def batch_slice(order: np.ndarray, step: int, batch_size: int, rank: int, ranks: int) -> BatchSlice:
    """Return a rank's part of global batch `step`.

    The last batch is filled with samples from the beginning of the order at weight 0: every
    sample counts once, and every batch has the same shape.

    Args:
        order: (n,) the epoch's order.
        step: 0 … steps_per_epoch - 1.
        batch_size: of all ranks together; a multiple of `ranks`.
        rank, ranks: which part, of how many.
    """
    if batch_size % ranks:
        raise ValueError(f"batch_size {batch_size} is no multiple of {ranks} ranks")
    share = batch_size // ranks
    first = step * batch_size
    places = first + rank * share + np.arange(share)
    return BatchSlice(
        records=order[places % len(order)],
        weights=(places < len(order)).astype(np.float32),
        total=min(batch_size, len(order) - first),
    )
