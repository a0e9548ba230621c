"""Slides as training samples, with targets of their outcomes."""

import numpy as np

from gigatile.tasks.slide_embedding.samples import EmbeddedSlides
from gigatile.tasks.slide_outcome.targets import OutcomeReader, OutcomeScale
from gigatile.training.batches import ArraySpec


class OutcomeSlides(EmbeddedSlides):
    """Slides of a split: targets (2,) float32; see `OutcomeScale.targets` and `EmbeddedSlides`."""

    target = ArraySpec((2,), np.dtype(np.float32))

    def __init__(self, reader: OutcomeReader, scale: OutcomeScale, most: int | None = None) -> None:
        """Read slides; see `EmbeddedSlides`."""
        super().__init__(reader, most)
        self._targets = scale.targets(reader.outcomes)

    def targets_of(self, numbers: np.ndarray) -> np.ndarray:
        """Return the targets of some slides, given by their numbers, (n,)."""
        return self._targets[numbers]
