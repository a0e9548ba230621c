"""Tiles as training samples: read, decoded, augmented, and flipped or rotated."""

import time
from typing import Any

import numpy as np

from gigatile.records.shards import ShardReader
from gigatile.records.tile import decode_jpeg, jpeg_shape
from gigatile.training.augmentation import Augmentation
from gigatile.training.batches import ArraySpec
from gigatile.training.mixup import shares_of
from gigatile.training.sample_order import Samples
from gigatile.training.view_writer import write_view


class Tiles:
    """Tiles of a split: inputs (side, side, 3) uint8, targets () int32, indices of classes.

    With mixup, the targets are `labels`, as above, and `shares`, () float32; see
    `gigatile.training.mixup`.

    See `batches.SampleSource`.
    """

    def __init__(
        self, reader: ShardReader, augmentation: Augmentation | None = None, mixup: float = 0
    ) -> None:
        self._reader, self._augmentation, self._mixup = reader, augmentation, mixup
        self._shape: tuple[int, ...] | None = None

    @property
    def in_store(self) -> bool:
        """Whether `fetch` saves time."""
        return self._reader.in_store

    def fetch(self, samples: Samples) -> None:
        """Fetch the tiles; see `gigatile.training.read_ahead`."""
        self._reader.fetch(samples.records.tolist())

    def specs(self, samples: Samples) -> tuple[ArraySpec, Any]:
        """Return the specs of tile and class. All tiles have the size of the first one."""
        if self._shape is None:
            record = int(samples.records[0])
            try:
                self._shape = jpeg_shape(self._reader.image(record))
            except ValueError as error:
                raise self._reader.damaged(record, f"its image: {error}") from None
        tile, label = ArraySpec(self._shape, np.dtype(np.uint8)), ArraySpec((), np.dtype(np.int32))
        if not self._mixup:
            return tile, label
        return tile, {"labels": label, "shares": ArraySpec((), np.dtype(np.float32))}

    def fill(self, samples: Samples, inputs: np.ndarray, targets: Any) -> tuple[float, float]:
        """Read and decode tiles into arrays."""
        start = time.perf_counter()
        records = samples.records.tolist()
        if self._mixup:
            targets["shares"][...] = shares_of(samples.seeds, self._mixup)
        labels = targets["labels"] if self._mixup else targets
        labels[...] = self._reader.classes_at(samples.records)
        files = [self._reader.image(record) for record in records]
        read = time.perf_counter()
        upright, scratch = np.empty((2, *inputs.shape[1:]), np.uint8)
        for tile, data, view, record, seed in zip(
            inputs, files, samples.views.tolist(), records, samples.seeds.tolist(), strict=True
        ):
            try:
                if self._augmentation:
                    changed = self._augmentation(decode_jpeg(data, into=upright), seed)
                    write_view(changed, view, tile, scratch)
                elif view == 0:
                    decode_jpeg(data, into=tile)
                else:
                    write_view(decode_jpeg(data, into=upright), view, tile, scratch)
            except ValueError as error:
                raise self._reader.damaged(record, f"its image: {error}") from None
        return read - start, time.perf_counter() - read
