"""Decide the label of each voxel from the scores of a model."""

from collections.abc import Sequence

import numpy as np

from gigatile.settings.volumes import VolumeSettings

# The smallest probability, so that logarithms are finite.
MIN_SCORE = 1e-6


class Decision:
    """Returns the label of each voxel from its scores.

    For a softmax over background and labels, it is the label with the highest score.

    For regions, each with a score p, it is the label (or background) with the highest likelihood:
    the product of p for each region that contains the label and 1 - p for each other region. So a
    voxel belongs to the regions with scores above 0.5, unless these contradict each other, such as
    enhancing tumour outside of the whole tumour. Of labels in the same regions, only the one with
    the lowest value is used.
    """

    def __init__(self, outputs: Sequence[str], activation: str, volumes: VolumeSettings) -> None:
        """Set up the decision for a model.

        Args:
            outputs: the names of its regions or labels.
            activation: `sigmoid` for regions, `softmax` for labels.
            volumes: the values of labels, and the labels of regions.
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
        # `argmax` returns the first of equal likelihoods: a score of 0.5 does not count as above.
        rows = dict(sorted(rows.items(), key=lambda row: sum(row[0])))
        self._values = np.array(list(rows.values()), np.uint8)
        # (regions, labels): 1 if the region contains the label.
        self._membership = np.array(list(rows), np.float32).T

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Return the label of each voxel.

        Args:
            scores: (…, outputs) float32, 0-1.

        Returns:
            (…) uint8, values as in segmentations.
        """
        if self._softmax:
            return self._values[scores.argmax(axis=-1)]
        inside = np.log(np.maximum(scores, MIN_SCORE))
        outside = np.log(np.maximum(1 - scores, MIN_SCORE))
        # The log-likelihood, without the sum of `outside` over all regions, which labels share.
        likelihood = (inside - outside) @ self._membership
        return self._values[likelihood.argmax(axis=-1)]
