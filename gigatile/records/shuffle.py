"""Counter-based random numbers: a pure function of a key and a counter.

There is no state. The numbers are the same on every machine and with every release of the
libraries, so the same settings give the same bytes.
"""

import functools
import hashlib
import math

import numpy as np


def key64(*parts: str | int) -> int:
    """Return a 64-bit key for a tuple of names and numbers (BLAKE2b)."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def random64(key: int, counters: np.ndarray) -> np.ndarray:
    """Return one random 64-bit number per counter: (n,) uint64.

    SplitMix64 (Steele, Lea and Flood 2014, https://doi.org/10.1145/2660193.2660195): `key` plus
    `counter` golden-ratio steps, mixed twice.
    """
    with np.errstate(over="ignore"):
        z = np.uint64(key) + (counters.astype(np.uint64) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform_of(numbers: np.ndarray) -> np.ndarray:
    """Return random 64-bit numbers as numbers in [0, 1): float64 of the same shape."""
    return (numbers >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(n: int, *key: str | int) -> np.ndarray:
    """Return a random permutation of 0 … n-1 that depends on `key`: (n,) int64."""
    return np.argsort(random64(key64(*key), np.arange(n)), kind="stable")


@functools.lru_cache(maxsize=4)
def normal_numbers(count: int) -> np.ndarray:
    """Return approximately normal random numbers: (count,) float32, equal on all machines."""
    numbers = random64(key64("noise"), np.arange(count))
    # The sum of eight random bytes (Irwin and Hall 1927); whole numbers are not rounded.
    sums = numbers.view(np.uint8).reshape(-1, 8).sum(axis=1, dtype=np.int64) - 8 * 255 / 2
    return (sums / math.sqrt(8 * (2**16 - 1) / 12)).astype(np.float32)
