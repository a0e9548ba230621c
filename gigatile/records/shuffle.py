"""Counter-based random numbers: a pure function of a key and a counter.

There is no state. The numbers are the same on every machine and with every release of the
libraries, so the same settings give the same bytes.
"""

import hashlib

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


def permutation(n: int, *key: str | int) -> np.ndarray:
    """Return a random permutation of 0 … n-1 that depends on `key`: (n,) int64."""
    return np.argsort(random64(key64(*key), np.arange(n)), kind="stable")
