"""The targets of a segmentation model: regions, which may overlap, or labels and background."""

from typing import Literal

import numpy as np

from gigatile.settings.patches import PatchSettings
from gigatile.settings.volumes import VolumeSettings


class Targets:
    """The targets of a model.

    Attributes:
        names: of regions or labels, without background.
        outputs: number of outputs of a model per voxel. For labels, background is the first one.
        activation: of the outputs.
        table: (256, outputs) float32, the target outputs (0 or 1) for each value in a segmentation.
    """

    def __init__(self, volumes: VolumeSettings, patches: PatchSettings) -> None:
        values, by_label = volumes.label_values, patches.targets == "labels"
        regions = {name: (name,) for name in values} if by_label else volumes.region_labels
        table = np.zeros((256, len(regions)), np.float32)
        for number, names in enumerate(regions.values()):
            table[[values[name] for name in names], number] = 1
        self.names = list(regions)
        self.activation: Literal["softmax", "sigmoid"] = "softmax" if by_label else "sigmoid"
        if by_label:
            table = np.concatenate([1 - table.sum(axis=1, keepdims=True), table], axis=1)
        self.outputs, self.table = table.shape[1], table
