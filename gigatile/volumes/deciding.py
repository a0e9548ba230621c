"""From scores of each voxel to the value of its label."""

from collections.abc import Sequence

import numpy as np

from gigatile.settings.volumes import VolumeSettings

# Scores this near to 0 or 1 count as that: logarithms stay finite.
LEAST = 1e-6


class Decision:
    """What a model's outputs stand for, and which label a voxel gets by its scores.

    Where the outputs are a softmax over background and labels, the label with the highest score.

    Where they are regions, each with a score p of its own, the label, or background, that is
    likeliest: p for each region that it belongs to and 1 - p for each other, multiplied. So each
    region is where its score is above a half, unless scores contradict each other, as an enhancing
    tumour outside the whole tumour would. Of labels that belong to the same regions the one of the
    lowest value stands for all.
    """

    def __init__(self, outputs: Sequence[str], activation: str, volumes: VolumeSettings) -> None:
        """Take up what is written beside a model.

        Args:
            outputs: the names of its regions or labels.
            activation: `sigmoid` of regions, `softmax` of labels.
            volumes: the values of labels, and what regions consist of.
        """
        values = volumes.label_values
        self._softmax = activation == "softmax"
        if self._softmax:
            self._values = np.array([0, *(values[name] for name in outputs)], np.uint8)
            return
        regions = [volumes.region_labels[name] for name in outputs]
        rows: dict[tuple[bool, ...], int] = {(False,) * len(regions): 0}
        for name, value in values.items():
            rows.setdefault(tuple(name in region for region in regions), value)
        # Of equally likely ones the first counts: a score of a half is not above a half.
        rows = dict(sorted(rows.items(), key=lambda row: sum(row[0])))
        self._values = np.array(list(rows.values()), np.uint8)
        # (regions, labels): whether a region has the label.
        self._within = np.array(list(rows), np.float32).T

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Return the label of each voxel.

        Args:
            scores: (…, outputs) float32, 0-1.

        Returns:
            (…) uint8, values as in segmentations.
        """
        if self._softmax:
            return self._values[scores.argmax(axis=-1)]
        inside = np.log(np.maximum(scores, LEAST))
        outside = np.log(np.maximum(1 - scores, LEAST))
        # The sum over regions of one or the other is what all labels share and a difference.
        likelihood = (inside - outside) @ self._within
        return self._values[likelihood.argmax(axis=-1)]
