"""Patches of volumes as samples: where each lies follows from its place in the epoch."""

import functools
from collections.abc import Sequence

import numpy as np

from gigatile.errors import UserError
from gigatile.records.shards import ShardReader
from gigatile.records.volume import VolumeRecord
from gigatile.settings.patches import PatchSettings
from gigatile.training.batches import Form
from gigatile.training.order import Samples
from gigatile.training.patches import fill_patch

# Heads of records that are kept, of 50 kB or so each.
HEADS = 256


class Patches:
    """Patches: images (x, y, z, channels) float16, labels (x, y, z) uint8.

    Reading and turning release the interpreter's lock, so threads use as many cores.
    """

    def __init__(
        self, reader: ShardReader, settings: PatchSettings, channels: Sequence[str]
    ) -> None:
        self._reader, self._settings, self._channels = reader, settings, list(channels)
        self._record = functools.lru_cache(HEADS)(self._opened)

    def _opened(self, number: int) -> VolumeRecord:
        record = VolumeRecord(*self._reader.locate(number))
        head = record.head
        if not head.labelled:
            raise UserError(f"case {head.case}: has no segmentation to learn from")
        if list(head.channels) != self._channels:
            raise UserError(
                f"case {head.case}: has the channels {', '.join(head.channels)} where "
                f"volumes.modalities are {', '.join(self._channels)}; prepare it anew"
            )
        return record

    def forms(self, record: int) -> tuple[Form, Form]:
        """Return the forms of image and label; see `batches.Source`.

        Raises:
            UserError: the case has no labels, or other channels.
        """
        self._record(record)
        size = self._settings.size
        image = Form((*size, len(self._channels)), np.dtype(np.float16))
        return image, Form(size, np.dtype(np.uint8))

    def fill(self, samples: Samples, images: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        """Read and change patches; see `batches.Source`."""
        read = changed = 0.0
        for number, draw, image, label in zip(
            samples.records.tolist(), samples.draws.tolist(), images, labels, strict=True
        ):
            seconds = fill_patch(self._record(number), draw, self._settings, image, label)
            read, changed = read + seconds[0], changed + seconds[1]
        return read, changed
