"""Whole slides as training samples: numbers and views. Pixels are read window by window."""

import numpy as np

from gigatile.training.batches import ArraySpec
from gigatile.training.sample_order import Samples

NUMBER = ArraySpec((), np.dtype(np.int64))


class Slides:
    """Slides of a split: inputs `slide` and `view`, () int64, and targets.

    See `batches.SampleSource`.
    """

    def __init__(self, targets: np.ndarray) -> None:
        """Show slides with these targets, (slides, …)."""
        self._targets = targets
        self._target = ArraySpec(targets.shape[1:], targets.dtype)

    def specs(self, samples: Samples) -> tuple[dict[str, ArraySpec], ArraySpec]:
        """Return the specs of a slide and its target."""
        return {"slide": NUMBER, "view": NUMBER}, self._target

    def fill(
        self, samples: Samples, inputs: dict[str, np.ndarray], targets: np.ndarray
    ) -> tuple[float, float]:
        """Write the numbers, views and targets of slides into arrays."""
        inputs["slide"][...], inputs["view"][...] = samples.records, samples.views
        targets[...] = self._targets[samples.records]
        return 0.0, 0.0
