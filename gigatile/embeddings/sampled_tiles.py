"""Embeddings of some tiles of each slide, for figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gigatile.embeddings.hdf5 import read_rows
from gigatile.records.shuffle import key64, random64


@dataclass(frozen=True)
class SampledTiles:
    """Some tiles of a slide.

    Attributes:
        slide: its id.
        corners: (n, 2) int64, x and y of the top-left corners in pixels of level 0.
        values: (n, dimensions) float32, the embeddings.
    """

    slide: str
    corners: np.ndarray
    values: np.ndarray


def sample_tiles(
    folder: Path, tiles: Mapping[str, int], most: int, seed: int
) -> list[SampledTiles]:
    """Read embeddings of tiles that are chosen at random, as many of each slide.

    Args:
        folder: with <slide>.h5.
        tiles: the number of tiles of each slide.
        most: the most tiles in all, if there are not more slides.
        seed: of the choice.

    Raises:
        UserError: a file is missing or damaged.
    """
    share = max(1, most // max(1, len(tiles)))
    sampled = []
    for slide, count in tiles.items():
        keys = random64(key64("sampled tiles", slide, seed), np.arange(count))
        rows = np.sort(np.argsort(keys)[:share])
        values, corners = read_rows(folder / f"{slide}.h5", rows)
        sampled.append(SampledTiles(slide, corners, values))
    return sampled
