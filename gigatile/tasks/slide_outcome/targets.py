"""The outcomes in shards."""

from pathlib import Path

import numpy as np

from gigatile.cohort.outcomes import parse_outcome
from gigatile.records.shards import CACHE_GB
from gigatile.records.slides import SlideReader


class OutcomeReader(SlideReader):
    """A split's slides with outcomes in place of classes; see `SlideReader`.

    Attributes:
        outcomes: of each slide.
    """

    def __init__(self, manifest: Path, split: str, cache_gb: float = CACHE_GB) -> None:
        """Open the shards of a split."""
        super().__init__(manifest, split, cache_gb)
        labels = [self.classes[number] for number in self._labels]
        self.outcomes = [parse_outcome(label) for label in labels]
        # No slide is of any class.
        self.classes = []
        self._labels = np.zeros_like(self._labels)
        self.counts = self.counts.sum(axis=1, keepdims=True)
