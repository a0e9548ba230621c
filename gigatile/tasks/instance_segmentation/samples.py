"""Images with their instances as training samples."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gigatile.errors import UserError
from gigatile.instances.annotations import Instances
from gigatile.records.instances import AnnotatedImage, decode_annotated
from gigatile.records.shards import ShardReader
from gigatile.records.tfrecord import read_sized
from gigatile.settings.detection import DetectionSettings
from gigatile.tasks.instance_segmentation.placement import (
    PlacedInstances,
    Placement,
    place,
    place_instances,
    place_mask,
    timed_place,
)
from gigatile.training.batches import ArraySpec
from gigatile.training.sample_order import Samples

# The numbers of instances and of pixels of masks are rounded up to multiples, so that batches have
# few different shapes.
INSTANCE_STEP, PIXEL_STEP = 16, 1 << 14


@dataclass(frozen=True)
class _Sample:
    image: AnnotatedImage
    instances: Instances
    placement: Placement
    placed: PlacedInstances
    read_seconds: float


class Images:
    """Inputs: images (height, width, 3) uint8. Targets: see `MaskRCNN.losses`.

    See `batches.SampleSource`.
    """

    def __init__(self, reader: ShardReader, settings: DetectionSettings) -> None:
        self._reader, self._settings = reader, settings

    @property
    def in_store(self) -> bool:
        """Whether `fetch` saves time."""
        return self._reader.in_store

    def fetch(self, samples: Samples) -> None:
        """Fetch the images; see `gigatile.training.read_ahead`."""
        self._reader.fetch(samples.records.tolist())

    def _sample(self, number: int, seed: int) -> _Sample:
        start = time.perf_counter()
        data = read_sized(*self._reader.locate(number))
        try:
            image = decode_annotated(data)
        except UserError as error:
            raise self._reader.damaged(number, str(error)) from None
        if image.instances is None:
            raise UserError(f"image {image.image_id}: has no annotations to train on")
        placement = place(image.height, image.width, seed, self._settings)
        placed = place_instances(image.instances, image.height, image.width, placement)
        seconds = time.perf_counter() - start
        return _Sample(image, image.instances, placement, placed, seconds)

    def specs(self, samples: Samples) -> tuple[ArraySpec, dict[str, ArraySpec]]:
        """Return the specs: as many instances and pixels of masks as the largest sample has.

        The records are read here and again in `fill`: a millisecond each, against memory for all
        images of the batches in progress.
        """
        placed = [self._sample(*pair).placed for pair in _pairs(samples)]
        count = _rounded(max(len(each.indices) for each in placed), INSTANCE_STEP)
        pixels = _rounded(max(each.pixels for each in placed), PIXEL_STEP)
        shapes: dict[str, tuple[tuple[int, ...], type]] = {
            "sizes": ((2,), np.int32),
            "seeds": ((2,), np.int32),
            "boxes": ((count, 4), np.float32),
            "classes": ((count,), np.int32),
            "crops": ((count, 4), np.int32),
            "offsets": ((count,), np.int32),
            "pixels": ((pixels,), np.uint8),
        }
        targets = {name: ArraySpec(shape, np.dtype(kind)) for name, (shape, kind) in shapes.items()}
        return ArraySpec((*self._settings.canvas, 3), np.dtype(np.uint8)), targets

    def fill(
        self, samples: Samples, inputs: np.ndarray, targets: dict[str, np.ndarray]
    ) -> tuple[float, float]:
        """Read and augment images."""
        read = augment = 0.0
        for name in targets:
            targets[name][:] = 0
        for index, (number, seed) in enumerate(_pairs(samples)):
            sample = self._sample(number, seed)
            start = time.perf_counter()
            pixels = sample.image.pixels()
            timed_place(pixels, sample.placement, self._settings, inputs[index])
            targets["sizes"][index] = sample.placement.visible
            targets["seeds"][index] = np.array([seed], np.uint64).view(np.int32)
            _fill_instances(sample, {name: array[index] for name, array in targets.items()})
            read += sample.read_seconds
            augment += time.perf_counter() - start
        return read, augment


def _pairs(samples: Samples) -> Iterator[tuple[int, int]]:
    """Yield record and seed of each sample."""
    return zip(samples.records.tolist(), samples.seeds.tolist(), strict=True)


def _rounded(number: int, step: int) -> int:
    return max(step, -(-number // step) * step)


def _fill_instances(sample: _Sample, out: dict[str, np.ndarray]) -> None:
    """Write the visible instances; those of which no pixel is left are padding."""
    image, placement = sample.image, sample.placement
    rows, columns = placement.visible
    slot = offset = 0
    placed = sample.placed
    for index, box, crop in zip(placed.indices.tolist(), placed.boxes, placed.crops, strict=True):
        mask = place_mask(
            sample.instances.mask(index),
            sample.instances.crops[index],
            crop,
            image.height,
            image.width,
            placement,
        )
        if not mask.any():
            continue
        if (box < 0).any() or box[2] > rows or box[3] > columns:
            # The canvas cuts it: its box is that of the part that is left.
            box = _box_of(mask, crop)
        out["boxes"][slot], out["crops"][slot] = box, crop
        out["classes"][slot] = sample.instances.classes[index]
        out["offsets"][slot] = offset
        out["pixels"][offset : offset + mask.size] = mask.reshape(-1)
        slot, offset = slot + 1, offset + mask.size


def _box_of(mask: np.ndarray, crop: np.ndarray) -> np.ndarray:
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    return np.array(
        [crop[0] + rows[0], crop[1] + columns[0], crop[0] + rows[-1] + 1, crop[1] + columns[-1] + 1]
    )
