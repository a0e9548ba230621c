"""Embeddings of a slide as HDF5, in the form of TRIDENT and CLAM.

Datasets `features`, (tiles, dimensions) float32, and `coords`, (tiles, 2) int64, the top-left
corners in pixels of level 0. Attributes of `coords`: `patch_size`, the side of a tile in its own
pixels, and `patch_size_level0`, its side in pixels of level 0. CLAM reads the datasets, TRIDENT
(https://github.com/mahmoodlab/TRIDENT) also the attributes.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np

from gigatile.files import write_whole

FEATURES, COORDS = "features", "coords"


class Hdf5Writer:
    """Writes the embeddings of a slide, part by part."""

    def __init__(self, file: h5py.File, tiles: int, dimensions: int) -> None:
        self._features = file.create_dataset(
            FEATURES, (tiles, dimensions), np.float32, track_times=False
        )
        self.coords = file.create_dataset(COORDS, (tiles, 2), np.int64, track_times=False)
        self.written = 0

    def write(self, features: np.ndarray, coords: Sequence[tuple[int, int]]) -> None:
        """Write the next tiles.

        Args:
            features: (n, dimensions) float32.
            coords: n times x and y, in pixels of level 0.
        """
        rows = slice(self.written, self.written + len(features))
        self._features[rows], self.coords[rows] = features, np.array(coords, np.int64)
        self.written = rows.stop


@contextlib.contextmanager
def write_hdf5(
    path: Path, tiles: int, dimensions: int, attributes: Mapping[str, str | int]
) -> Iterator[Hdf5Writer]:
    """Write a file atomically: yield its writer. Equal values give equal bytes.

    Args:
        path: of the file.
        tiles: number of tiles.
        dimensions: numbers of an embedding.
        attributes: of `coords`.

    Raises:
        ValueError: fewer tiles were written.
    """
    with write_whole(path) as temporary, h5py.File(temporary, "w", libver="earliest") as file:
        writer = Hdf5Writer(file, tiles, dimensions)
        for name, value in sorted(attributes.items()):
            writer.coords.attrs[name] = value
        yield writer
        if writer.written != tiles:
            raise ValueError(f"{writer.written} tiles of {tiles} were written")
