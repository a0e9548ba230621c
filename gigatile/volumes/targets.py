"""What a model tells apart of each voxel: regions, which may overlap, or labels and background."""

from typing import Literal

import numpy as np

from gigatile.settings.patches import PatchSettings
from gigatile.settings.volumes import VolumeSettings


class Targets:
    """What is told apart.

    Attributes:
        names: of regions or labels; background is not among them.
        outputs: of a model for each voxel: as many; of labels one more, background, the first.
        activation: what makes scores of them.
        table: (256, outputs) float32: for each value in a segmentation 1 where it belongs, else 0.
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
