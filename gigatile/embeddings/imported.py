"""Read embeddings that another program made: HDF5 of TRIDENT or CLAM.

TRIDENT (https://github.com/mahmoodlab/TRIDENT) and CLAM (https://github.com/mahmoodlab/CLAM) write
the datasets `features`, (tiles, dimensions), and `coords`, (tiles, 2), the top-left corners in
pixels of level 0; both may have a further axis of length 1 in front. Attributes of `coords`, all
optional: `patch_size`, the side of a tile in its own pixels; `patch_size_level0`, its side in
pixels of level 0; `target_magnification`, `level0_magnification`; `level0_width`, `level0_height`,
the size of the slide.

The file is not trusted: HDF5 can refer to other files, and these references are not followed.
"""

import contextlib
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from gigatile.embeddings.hdf5 import COORDS, FEATURES
from gigatile.settings.encoder import EncoderSettings

MAX_DIMENSIONS = 65_536
MAX_TILES = 4_000_000
# The largest coordinate: slides have fewer pixels on a side.
MAX_PIXELS = 2**31
# With fewer tiles, two slides can have them at the same positions by chance.
MIN_POSITIONS = 20
# Bytes of embeddings that are read together.
PART_BYTES = 16 << 20


class EmbeddingsError(Exception):
    """A file of embeddings cannot be used; the message says why."""


@dataclass(frozen=True)
class ImportedEmbeddings:
    """An open file of embeddings.

    Attributes:
        corners: top-left corners of the tiles in pixels of level 0, (tiles, 2) int64.
        dimensions: numbers of an embedding.
        extent: side of a tile in pixels of level 0.
        size: side of a tile in its own pixels; None: not known.
        magnification: of the tiles; None: not known.
        objective: magnification of level 0; None: not known.
        width, height: of the slide in pixels of level 0; at least those that the tiles cover.
    """

    corners: np.ndarray
    dimensions: int
    extent: float
    size: int | None
    magnification: float | None
    objective: float | None
    width: int
    height: int
    _features: h5py.Dataset

    def parts(self) -> Iterator[np.ndarray]:
        """Yield the embeddings in parts, (n, dimensions) float32.

        Raises:
            EmbeddingsError: they cannot be read, or one has a number that is not finite.
        """
        count = max(1, PART_BYTES // (4 * self.dimensions))
        for begin in range(0, len(self.corners), count):
            rows = slice(begin, min(begin + count, len(self.corners)))
            with _faults_of_hdf5():
                stored = self._features[(*(0,) * (self._features.ndim - 2), rows)]
            with np.errstate(over="ignore"):
                values = np.ascontiguousarray(stored, np.float32)
            finite = np.isfinite(values).all(axis=1)
            if not finite.all():
                x, y = self.corners[begin + int(np.argmin(finite))].tolist()
                raise EmbeddingsError(f"the embedding of the tile at ({x}, {y}) is not finite")
            yield values

    def positions(self) -> str | None:
        """Return a hash of where the tiles are, relative to the first column and row.

        Programs place tiles where they find tissue, so two files with the same positions are of the
        same slide, also if their embeddings differ a little. None: there are few tiles, or they
        fill a rectangle, as those of cropped slides do.
        """
        corners = np.unique(self.corners - self.corners.min(axis=0), axis=0)
        columns, rows = (len(np.unique(axis)) for axis in corners.T)
        if len(corners) < MIN_POSITIONS or len(corners) == columns * rows:
            return None
        return hashlib.blake2b(corners.astype("<i8").tobytes(), digest_size=16).hexdigest()

    def encoder_id(self, settings: EncoderSettings) -> bytes:
        """Return what makes embeddings comparable: 16 bytes of the encoder and of its input."""
        content = [settings.embedded_with, self.dimensions, self.size, self.magnification]
        text = json.dumps(["imported", *content])
        return hashlib.blake2b(text.encode(), digest_size=16).digest()


@contextlib.contextmanager
def open_imported(path: Path) -> Iterator[ImportedEmbeddings]:
    """Open a file of embeddings.

    Raises:
        EmbeddingsError: it is missing, damaged or has another content.
    """
    with contextlib.ExitStack() as close:
        with _faults_of_hdf5():
            file = close.enter_context(h5py.File(path))
            features, coords = (_dataset(file, name) for name in (FEATURES, COORDS))
        yield _described(features, coords)


@contextlib.contextmanager
def _faults_of_hdf5() -> Iterator[None]:
    try:
        yield
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
        reason = " ".join(str(error).strip("'\"").split())
        raise EmbeddingsError(f"it cannot be read as HDF5: {reason}") from None


def _dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """Return a dataset with its values in the file itself."""
    link = file.get(name, getlink=True)
    if link is None:
        raise EmbeddingsError(f"it has no dataset {name!r}, as embeddings of TRIDENT and CLAM have")
    dataset = file[name] if isinstance(link, h5py.HardLink) else None
    if not isinstance(dataset, h5py.Dataset):
        raise EmbeddingsError(f"{name!r} is not a dataset of this file")
    if dataset.external or dataset.is_virtual:
        raise EmbeddingsError(f"{name!r} is stored in another file")
    return dataset


def _shape(dataset: h5py.Dataset) -> tuple[int, ...]:
    """Return the shape of a dataset, without a first axis of length 1 before two others."""
    shape: tuple[int, ...] = dataset.shape or ()
    return shape[1:] if len(shape) == 3 and shape[0] == 1 else shape


def _described(features: h5py.Dataset, coords: h5py.Dataset) -> ImportedEmbeddings:
    of_features, of_coords = _shape(features), _shape(coords)
    if len(of_features) != 2 or features.dtype.kind != "f":
        raise EmbeddingsError(
            f"{FEATURES!r} has the shape {features.shape} and the type {features.dtype}; must be "
            "(tiles, numbers) of floating point"
        )
    tiles, dimensions = of_features[0], of_features[1]
    if of_coords != (tiles, 2) or coords.dtype.kind not in "iuf":
        raise EmbeddingsError(
            f"{COORDS!r} has the shape {coords.shape} and the type {coords.dtype}; must be "
            f"({tiles}, 2) numbers, as {FEATURES!r} has {tiles} rows"
        )
    if not tiles:
        raise EmbeddingsError("it has no tiles")
    if tiles > MAX_TILES or not 0 < dimensions <= MAX_DIMENSIONS:
        raise EmbeddingsError(
            f"it has {tiles} tiles of {dimensions} numbers; at most {MAX_TILES} of "
            f"{MAX_DIMENSIONS} can be used"
        )
    with _faults_of_hdf5():
        corners = np.asarray(coords[...]).reshape(tiles, 2)
        attributes = {
            name: _number(coords.attrs.get(name))
            for name in (
                *("patch_size", "patch_size_level0", "target_magnification"),
                *("level0_magnification", "level0_width", "level0_height"),
            )
        }
    if not ((corners >= 0) & (corners < MAX_PIXELS) & (corners == np.floor(corners))).all():
        raise EmbeddingsError(f"{COORDS!r} has values that are no pixels of level 0")
    corners = corners.astype(np.int64)
    extent = attributes["patch_size_level0"] or _usual_step(corners) or attributes["patch_size"]
    if extent is None:
        raise EmbeddingsError(
            f"{COORDS!r} has neither the attribute patch_size_level0 nor two tiles next to each "
            "other, so the size of a tile is not known"
        )
    covered = np.ceil(corners.max(axis=0) + extent).astype(int).tolist()
    width, height = (
        max(int(attributes[name] or 0), least)
        for name, least in zip(("level0_width", "level0_height"), covered, strict=True)
    )
    size = attributes["patch_size"]
    return ImportedEmbeddings(
        corners=corners,
        dimensions=dimensions,
        extent=extent,
        size=None if size is None else round(size),
        magnification=attributes["target_magnification"],
        objective=attributes["level0_magnification"],
        width=width,
        height=height,
        _features=features,
    )


def _number(value: object) -> float | None:
    """Return an attribute that is a plausible positive number; None: it is not."""
    try:
        number = float(np.asarray(value).item())
    except (TypeError, ValueError):
        return None
    return number if 0 < number < MAX_PIXELS and math.isfinite(number) else None


def _usual_step(corners: np.ndarray) -> float | None:
    """Return the most frequent distance of neighbours in a row or column; None: there are none.

    Not the least distance: CLAM places the tiles of each piece of tissue from its own corner.
    """
    steps = []
    for along, across in ((0, 1), (1, 0)):
        ordered = corners[np.lexsort((corners[:, along], corners[:, across]))]
        differences = np.diff(ordered, axis=0)
        together = (differences[:, across] == 0) & (differences[:, along] > 0)
        steps.append(differences[together, along])
    values, counts = np.unique(np.concatenate(steps), return_counts=True)
    return float(values[counts.argmax()]) if len(values) else None


def fingerprints_of(embeddings: ImportedEmbeddings) -> Iterator[bytes]:
    """Yield 16 bytes for each tile, by which an equal tile of another slide is found.

    They are a hash of the embedding, as the pixels are not known. Tiles of one slide with equal
    embeddings are plain, such as glass, and another slide can have the same: their hash is empty.
    """
    hashes = [
        hashlib.blake2b(row.tobytes(), digest_size=16).digest()
        for part in embeddings.parts()
        for row in part
    ]
    counts = Counter(hashes)
    for value in hashes:
        yield value if counts[value] == 1 else b""
