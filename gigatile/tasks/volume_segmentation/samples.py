"""Patches of volumes as training samples."""

import functools
from collections.abc import Sequence

import numpy as np

from gigatile.errors import UserError
from gigatile.records.shards import ShardReader
from gigatile.records.volume import VolumeRecord
from gigatile.settings.patches import PatchSettings
from gigatile.tasks.volume_segmentation.patches import fill_patch
from gigatile.training.batches import ArraySpec
from gigatile.training.sample_order import Samples

# Headers of records that are cached, about 50 kB each.
CACHED_HEADERS = 256


class Patches:
    """Patches: inputs (x, y, z, channels) float16, targets (x, y, z) uint8 label values.

    See `batches.SampleSource`.
    """

    def __init__(
        self, reader: ShardReader, settings: PatchSettings, channels: Sequence[str]
    ) -> None:
        self._reader, self._settings, self._channels = reader, settings, list(channels)
        self._record = functools.lru_cache(CACHED_HEADERS)(self._open)

    def _open(self, number: int) -> VolumeRecord:
        record = VolumeRecord(*self._reader.locate(number))
        head = record.head
        if not head.labelled:
            raise UserError(f"case {head.case}: has no segmentation to train on")
        if list(head.channels) != self._channels:
            raise UserError(
                f"case {head.case}: has the channels {', '.join(head.channels)}, but "
                f"volumes.modalities are {', '.join(self._channels)}; prepare the case again"
            )
        return record

    def specs(self, samples: Samples) -> tuple[ArraySpec, ArraySpec]:
        """Return the specs of image and labels.

        Raises:
            UserError: the first case has no labels, or other channels.
        """
        self._record(int(samples.records[0]))
        size = self._settings.size
        image = ArraySpec((*size, len(self._channels)), np.dtype(np.float16))
        return image, ArraySpec(size, np.dtype(np.uint8))

    def fill(
        self, samples: Samples, inputs: np.ndarray, targets: np.ndarray
    ) -> tuple[float, float]:
        """Read and augment patches."""
        read = augment = 0.0
        for number, seed, image, labels in zip(
            samples.records.tolist(), samples.seeds.tolist(), inputs, targets, strict=True
        ):
            seconds = fill_patch(self._record(number), seed, self._settings, image, labels)
            read, augment = read + seconds[0], augment + seconds[1]
        return read, augment
