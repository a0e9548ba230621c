"""Slides as training samples: the embeddings of their tiles, read and padded."""

import time
from collections.abc import Sequence

import numpy as np

from gigatile.embeddings.stored import embeddings_in
from gigatile.records.shuffle import random64
from gigatile.records.slides import SlideReader
from gigatile.training.batches import ArraySpec
from gigatile.training.sample_order import Samples


class EmbeddedSlides:
    """Slides of a split, with targets and these inputs.

    - `embeddings`, (tiles, dimensions) float32, padded to the largest slide of the batch;
    - `present`, (tiles,) float32: 1, or 0 for padding.

    See `batches.SampleSource`.
    """

    def __init__(self, reader: SlideReader, targets: np.ndarray, most: int | None = None) -> None:
        """Read slides.

        Args:
            reader: of the shards.
            targets: of the slides, (slides, …).
            most: the most tiles of a slide, chosen at random for each sample; None: all.
        """
        self._reader, self._most = reader, most
        self._targets = targets
        self._target = ArraySpec(targets.shape[1:], targets.dtype)
        (first,) = embeddings_in(reader, range(1))
        self._dimensions = len(first)

    @property
    def in_store(self) -> bool:
        """Whether `fetch` saves time."""
        return self._reader.in_store

    def fetch(self, samples: Samples) -> None:
        """Fetch the embeddings; see `gigatile.training.read_ahead`."""
        self._reader.fetch(samples.records.tolist())

    def specs(self, samples: Samples) -> tuple[dict[str, ArraySpec], ArraySpec]:
        """Return the specs of a slide and its target."""
        tiles = max(len(self._reader.records_of(number)) for number in samples.records.tolist())
        if self._most is not None:
            tiles = min(tiles, self._most)
        inputs = {
            "embeddings": ArraySpec((tiles, self._dimensions), np.dtype(np.float32)),
            "present": ArraySpec((tiles,), np.dtype(np.float32)),
        }
        return inputs, self._target

    def fill(
        self, samples: Samples, inputs: dict[str, np.ndarray], targets: np.ndarray
    ) -> tuple[float, float]:
        """Read embeddings into arrays."""
        start = time.perf_counter()
        targets[...] = self._targets[samples.records]
        for number, seed, embeddings, present in zip(
            samples.records.tolist(),
            samples.seeds.tolist(),
            inputs["embeddings"],
            inputs["present"],
            strict=True,
        ):
            records = self._chosen(self._reader.records_of(number), seed)
            for row, values in zip(
                embeddings, embeddings_in(self._reader, records, self._dimensions), strict=False
            ):
                row[...] = values
            count = len(records)
            embeddings[count:] = 0
            present[:count], present[count:] = 1, 0
        return time.perf_counter() - start, 0.0

    def _chosen(self, records: range, seed: int) -> Sequence[int]:
        if self._most is None or len(records) <= self._most:
            return records
        keys = random64(seed, np.arange(len(records)))
        chosen = np.argpartition(keys, self._most)[: self._most]
        return [records[position] for position in sorted(chosen.tolist())]
