"""Prepare cases with short settings, and read their records."""

import json

import numpy as np
from known_volumes import SHAPE, ellipsoid

from gigatile.records.files import DiskFile
from gigatile.records.volume import VolumeRecord
from gigatile.settings.volumes import VolumeSettings
from gigatile.volumes.preparation import PreparedFiles, prepare_case

MODALITIES = ("flair", "t1")
BRAIN = ellipsoid(SHAPE, 0.42)
BOX = tuple(slice(int(a.min()), int(a.max()) + 1) for a in np.nonzero(BRAIN))


def settings(**changes) -> VolumeSettings:
    return VolumeSettings(
        **({"modalities": MODALITIES, "labels": "decathlon", "regions": "labels"} | changes)
    )


def prepare(out, images, segmentation=None, **changes) -> dict:
    files = PreparedFiles(out / "C1.tfrecord", out / "C1.json")
    prepare_case("C1", images, segmentation, settings(**changes), files)
    return json.loads(files.state.read_text())


def record(out) -> tuple:
    """Return the image, (x, y, z, C) float16, and the labels of the record."""
    path = out / "C1.tfrecord"
    shape = json.loads((out / "C1.json").read_text())["prepared"]["shape"]
    with DiskFile(path) as file:
        return VolumeRecord(file, 0, file.size).read((0, 0, 0), shape)


def z_score(values, mask):
    inside = values[mask].astype(np.float64)
    return np.where(mask, (values - inside.mean()) / inside.std(), 0)
