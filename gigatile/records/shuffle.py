"""Random numbers that are a pure function of what they are for.

Nothing here keeps a state: a number follows from its key alone, on every machine and with every
release of the libraries, so the same settings give the same bytes.
"""

import hashlib

import numpy as np


def key64(*parts: str | int) -> int:
    """Return a 64-bit key for a tuple of names and numbers (BLAKE2b)."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def random64(key: int, counters: np.ndarray) -> np.ndarray:
    """Return one random 64-bit number per counter: (n,) uint64.

    SplitMix64 (Steele, Lea and Flood 2014, https://doi.org/10.1145/2660193.2660195): the counter
    steps through the golden-ratio sequence from `key` and is mixed twice.
    """
    with np.errstate(over="ignore"):
        z = np.uint64(key) + (counters.astype(np.uint64) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def permutation(n: int, *key: str | int) -> np.ndarray:
    """Return the numbers 0 … n-1 in the random order that belongs to `key`: (n,) int64."""
    return np.argsort(random64(key64(*key), np.arange(n)), kind="stable")
