"""Records of volumes for tests, and patches of them."""

from pathlib import Path

import numpy as np

from gigatile.records import write_records
from gigatile.records.files import DiskFile
from gigatile.records.shuffle import random64
from gigatile.records.volume import VolumeRecord
from gigatile.records.volume_form import encode_volume
from gigatile.settings.patches import PatchSettings
from gigatile.tasks.volume_segmentation.patches import fill_patch

PLAIN = {"flips": False, "rotated": 0, "intensity": 0}
DRAWS = random64(7, np.arange(4000)).tolist()


def recorded(
    path: Path, image: np.ndarray, labels: np.ndarray | None, grid: dict | None = None
) -> VolumeRecord:
    names = [f"m{number}" for number in range(image.shape[3])]
    write_records(path, [encode_volume("C1", image, labels, names, grid or {})])
    file = DiskFile(path)
    return VolumeRecord(file, 0, file.size)


def filled(record: VolumeRecord, draw: int, how: PatchSettings) -> tuple[np.ndarray, np.ndarray]:
    image = np.full((*how.size, len(record.head.channels)), 7, np.float16)
    labels = np.full(how.size, 7, np.uint8)
    seconds = fill_patch(record, draw, how, image, labels)
    assert min(seconds) >= 0
    return image, labels


def a_head(shape: tuple[int, int, int], channels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return image and labels of an ellipsoid of noise; 0 outside."""
    random = np.random.default_rng([*shape, channels])
    positions = np.stack(np.meshgrid(*[np.linspace(-1, 1, side) for side in shape], indexing="ij"))
    inside = (positions**2).sum(axis=0) < 0.9
    image = random.standard_normal((*shape, channels)) * inside[..., None]
    labels = random.integers(0, 4, shape) * inside * (positions[0] > 0.2)
    return image.astype(np.float16), labels.astype(np.uint8)
