"""Embeddings of a slide as HDF5, in the form of TRIDENT and CLAM.

Datasets `features`, (tiles, dimensions) float32, and `coords`, (tiles, 2) int64, the top-left
corners in pixels of level 0. Attributes of `coords`: `patch_size`, the side of a tile in its own
pixels, and `patch_size_level0`, its side in pixels of level 0. CLAM reads the datasets, TRIDENT
(https://github.com/mahmoodlab/TRIDENT) also the attributes. The dataset `mean`, (dimensions,)
float32, is added; a slide without tiles has none.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np

from gigatile.errors import UserError
from gigatile.files import write_whole

FEATURES, COORDS, MEAN = "features", "coords", "mean"


class Hdf5Writer:
    """Writes the embeddings of a slide, part by part."""

    def __init__(self, file: h5py.File, tiles: int, dimensions: int) -> None:
        self._features = file.create_dataset(
            FEATURES, (tiles, dimensions), np.float32, track_times=False
        )
        self.coords = file.create_dataset(COORDS, (tiles, 2), np.int64, track_times=False)
        self._file, self._sum = file, np.zeros(dimensions)
        self.written = 0

    def write(self, features: np.ndarray, coords: Sequence[tuple[int, int]]) -> None:
        """Write the next tiles.

        Args:
            features: (n, dimensions) float32.
            coords: n times x and y, in pixels of level 0.
        """
        rows = slice(self.written, self.written + len(features))
        self._features[rows], self.coords[rows] = features, np.array(coords, np.int64)
        self._sum += features.sum(axis=0, dtype=np.float64)
        self.written = rows.stop

    def finish(self) -> None:
        """Write the mean of all tiles, with a checksum: it is read without the rest of the file."""
        if self.written:
            mean = (self._sum / self.written).astype(np.float32)
            self._file.create_dataset(
                MEAN, data=mean, chunks=mean.shape, fletcher32=True, track_times=False
            )


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
        writer.finish()


def read_mean(path: Path) -> np.ndarray:
    """Return the mean embedding of a slide, (dimensions,) float64.

    Raises:
        UserError: the file is missing or damaged.
    """
    try:
        with h5py.File(path) as file:
            return np.asarray(file[MEAN][:], np.float64)
    except (OSError, KeyError) as error:
        raise UserError(f"{path}: damaged, or without embeddings ({error}); run again") from None


def read_rows(path: Path, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return some embeddings of a slide, (n, dimensions) float32, and their corners, (n, 2) int64.

    Args:
        path: the file.
        rows: their numbers, (n,), increasing.

    Raises:
        UserError: the file is missing or damaged, or does not have that many.
    """
    try:
        with h5py.File(path) as file:
            return (
                np.asarray(file[FEATURES][rows], np.float32),
                np.asarray(file[COORDS][rows], np.int64),
            )
    except (OSError, KeyError, IndexError) as error:
        raise UserError(f"{path}: damaged, or without embeddings ({error}); run again") from None
