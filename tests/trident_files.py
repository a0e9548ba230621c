"""Files of embeddings as other programs write them."""

from pathlib import Path

import h5py
import numpy as np

# The side of a tile in pixels of level 0: tiles of 256 px at 20x, of a slide scanned at 40x.
EXTENT = 512


def corners_of(columns: int, rows: int, step: int = EXTENT) -> np.ndarray:
    """Return the corners of a grid of tiles, column by column, as TRIDENT has them."""
    x, y = np.meshgrid(np.arange(columns), np.arange(rows), indexing="ij")
    return np.stack([x.ravel(), y.ravel()], axis=1) * step


def random_features(tiles: int, dimensions: int = 8, seed: int = 1) -> np.ndarray:
    """Return embeddings as most encoders of TRIDENT write them, (tiles, dimensions) float16."""
    return np.random.default_rng(seed).normal(size=(tiles, dimensions)).astype(np.float16)


def write_trident(
    path: Path, features: np.ndarray, coords: np.ndarray, extent: int = EXTENT, **attributes
) -> Path:
    """Write a file with the datasets and attributes of TRIDENT's `extract_patch_features`."""
    with h5py.File(path, "w") as file:
        stored = file.create_dataset(
            "features", data=features, maxshape=(None, *features.shape[1:])
        )
        stored.attrs["name"], stored.attrs["savetodir"] = path.stem, "/somewhere/features_uni"
        placed = file.create_dataset("coords", data=coords)
        for name, value in (
            {
                "patch_size": 256,
                "patch_size_level0": extent,
                "level0_magnification": 40,
                "target_magnification": 20,
                "overlap": 0,
                "name": path.stem,
                "savetodir": "/somewhere",
            }
            | attributes
        ).items():
            placed.attrs[name] = value
    return path
