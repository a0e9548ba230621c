"""Volumes as records, for the search for equal voxels."""

import numpy as np

from gigatile.records.files import RecordFile
from gigatile.records.tfrecord import read_sized
from gigatile.records.volume import VolumeRecord
from gigatile.report.records import Record, RecordKind

# Two small lesions can fill the same voxels by chance.
FEWEST_LABELLED = 64


def read_volume(file: RecordFile, offset: int, size: int) -> Record:
    """Read a case. A channel without values (a missing modality) is not one of its images."""
    data = read_sized(file, offset, size)
    volume = VolumeRecord(file, offset, size)
    image, labels = volume.read((0, 0, 0), volume.head.shape)
    channels = [channel.tobytes() for channel in np.moveaxis(image, -1, 0) if channel.any()]
    labelled = np.count_nonzero(labels) >= FEWEST_LABELLED
    return Record(volume.head.case, data, channels, labels.tobytes() if labelled else b"")


VOLUMES = RecordKind("case", "image channel", read_volume, segmented=True)
