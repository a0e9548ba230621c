"""Segment the cases of the validation split, to choose what is done after the model."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gigatile.files import read_json
from gigatile.records.shards import ShardReader
from gigatile.records.volume import VolumeRecord
from gigatile.settings.section import check_section
from gigatile.settings.windows import WindowSettings
from gigatile.tasks.volume_segmentation.sliding_window import Segmenter, score_volume


def segmented_cases(
    model: Path, described: Path, manifest: Path, settings: Mapping[str, Any]
) -> tuple[Iterator[tuple[np.ndarray, np.ndarray, float]], dict[str, list[int]]]:
    """Segment the validation cases on their prepared grids.

    Args:
        model: the model (.keras).
        described: its settings.json.
        manifest: manifest of the shards, which must have the split valid.
        settings: contains the section `windows`.

    Returns:
        For each case the reference and the prediction, (x, y, z) uint8, and the volume of a voxel
        in mm³; and the values of the labels of each region.

    Raises:
        UserError: a file is missing or damaged, or a case does not fit the model.
    """
    windows = check_section(WindowSettings, settings["windows"], "windows")
    segmenter = Segmenter(model, described)
    reader = ShardReader(manifest, "valid")
    limit = read_json(described)["train"]["limit_batches"]
    values = segmenter.volumes.label_values
    regions = {
        name: [values[label] for label in labels]
        for name, labels in segmenter.volumes.region_labels.items()
    }

    def cases() -> Iterator[tuple[np.ndarray, np.ndarray, float]]:
        for number in range(min(len(reader), limit or len(reader))):
            record = VolumeRecord(*reader.locate(number))
            segmenter.check(record)
            shape = record.head.shape
            _, reference = record.read((0, 0, 0), shape)
            slabs = [segmenter.decide(slab) for slab in score_volume(segmenter, record, windows)]
            spacing = record.head.spacing or (1.0, 1.0, 1.0)
            yield reference, np.concatenate(slabs), float(np.prod(spacing))
        reader.close()

    return cases(), regions
