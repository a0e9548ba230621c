"""Small volumes of which all is known: records, shards, and models that are no more than a copy."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import keras
import numpy as np

from gigatile.files import sha256_of
from gigatile.records import write_records
from gigatile.records.files import DiskFile
from gigatile.records.shard_layout import Source
from gigatile.records.volume import VolumeRecord
from gigatile.records.volume_form import encode_volume
from gigatile.records.writing import write_shards
from gigatile.settings.patches import PatchSettings
from gigatile.settings.shards import ShardSettings
from gigatile.settings.volumes import VolumeSettings

# What the values of labels look like in two modalities.
BRIGHT = np.array([[0.2, 0.2], [1.5, 0.4], [1.2, -1.5], [-0.5, 2.0]])


def balls(shape: Sequence[int], random: np.random.Generator) -> np.ndarray:
    """Return three labels, one within the other, at a random place: (x, y, z) uint8."""
    middle = random.uniform(0.35, 0.65, 3) * shape
    places = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1)
    distance = np.sqrt(((places - middle) ** 2).sum(axis=-1)) / min(shape)
    return (distance[..., None] < (0.34, 0.24, 0.14)).sum(axis=-1).astype(np.uint8)


def patient(shape: Sequence[int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two noisy modalities of a tumour, (x, y, z, 2) float16, and its labels."""
    random = np.random.default_rng(seed)
    labels = balls(shape, random)
    image = BRIGHT[labels] + 0.3 * random.standard_normal((*shape, 2))
    return image.astype(np.float16), labels


def write_record(
    path: Path,
    case: str,
    image: np.ndarray,
    labels: np.ndarray | None,
    channels: Sequence[str],
    grid: dict | None = None,
) -> Path:
    """Write the record of a case."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_records(path, [encode_volume(case, image, labels, channels, grid or {})])
    return path


def opened(path: Path) -> VolumeRecord:
    """Open a record."""
    file = DiskFile(path)
    return VolumeRecord(file, 0, file.size)


def write_set(
    folder: Path,
    splits: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray | None]]],
    channels: Sequence[str],
) -> Path:
    """Write shards of cases, image and labels of each by its name; return their manifest."""
    sources = {
        split: [
            Source(
                case, case, "", write_record(folder / f"{case}.tfrecord", case, *arrays, channels)
            )
            for case, arrays in cases.items()
        ]
        for split, cases in splits.items()
    }
    write_shards(sources, ShardSettings(target_mb=0.2), folder / "shards", unit="case")
    return folder / "shards" / "manifest.json"


def write_model(
    folder: Path,
    model: keras.Model,
    volumes: VolumeSettings,
    patches: PatchSettings,
    name: str = "model",
    **fields: object,
) -> tuple[Path, Path]:
    """Write a model and its description as a training does; return both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    path, described = folder / f"{name}.keras", folder / f"{name}.json"
    model.save(path)
    values = {"volumes": volumes.model_dump(), "patches": patches.model_dump()} | fields
    described.write_text(json.dumps(values | {"sha256": sha256_of(path)}))
    return path, described


def copying(window: Sequence[int], channels: int) -> keras.Model:
    """Return a model whose scores are its input."""
    images = keras.Input((*window, channels))
    return keras.Model(images, keras.layers.Activation("linear", dtype="float32")(images))


def blurring(window: Sequence[int], channels: int, outputs: int) -> keras.Model:
    """Return a model that depends on what is around a voxel, and on its place in the window."""
    images = keras.Input((*window, channels))
    layer = keras.layers.Conv3D(outputs, 3, padding="same", activation="sigmoid", dtype="float32")
    scores = layer(images)
    random = np.random.default_rng(4)
    layer.set_weights([random.normal(size=weight.shape) for weight in layer.get_weights()])
    return keras.Model(images, scores)
