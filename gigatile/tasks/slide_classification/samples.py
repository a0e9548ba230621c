"""Whole slides as training samples: numbers and views. Pixels are read window by window."""

import numpy as np

from gigatile.records.slides import SlideReader
from gigatile.training.batches import ArraySpec
from gigatile.training.sample_order import Samples

NUMBER = ArraySpec((), np.dtype(np.int64))


class Slides:
    """Slides of a split: inputs `slide` and `view`, () int64; targets () int32, class indices.

    See `batches.SampleSource`.
    """

    def __init__(self, reader: SlideReader) -> None:
        self._reader = reader

    def specs(self, samples: Samples) -> tuple[dict[str, ArraySpec], ArraySpec]:
        """Return the specs of a slide and its class."""
        return {"slide": NUMBER, "view": NUMBER}, ArraySpec((), np.dtype(np.int32))

    def fill(
        self, samples: Samples, inputs: dict[str, np.ndarray], targets: np.ndarray
    ) -> tuple[float, float]:
        """Write the numbers, views and classes of slides into arrays."""
        inputs["slide"][...], inputs["view"][...] = samples.records, samples.views
        targets[...] = self._reader.classes_at(samples.records)
        return 0.0, 0.0
