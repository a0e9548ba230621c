"""Patches of volumes as training samples."""

import functools
from collections.abc import Sequence

import numpy as np

from gigatile.errors import UserError
from gigatile.records.files import RecordFile
from gigatile.records.shards import ShardReader
from gigatile.records.volume import FIRST_READ, VolumeRecord
from gigatile.settings.patches import PatchSettings
from gigatile.tasks.volume_segmentation.patches import box_of_patch, fill_patch
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

    @property
    def in_store(self) -> bool:
        """Whether `fetch` saves time."""
        return self._reader.in_store

    def fetch(self, samples: Samples) -> None:
        """Fetch the parts of the volumes; see `gigatile.training.read_ahead`."""
        numbers = list(dict.fromkeys(samples.records.tolist()))
        self._reader.fetch_beginnings(numbers, FIRST_READ)
        ranges: dict[RecordFile, list[tuple[int, int]]] = {}
        for number, seed in zip(samples.records.tolist(), samples.seeds.tolist(), strict=True):
            record = self._record(number)
            box = box_of_patch(record.head, seed, self._settings)
            ranges.setdefault(record.file, []).extend(record.ranges(*box))
        self._reader.fetch_ranges(ranges)

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
