"""Tiles as samples: read, decoded, and shown under one of the views of a square."""

import time

import numpy as np

from gigatile.records.shards import ShardReader
from gigatile.records.tile import decode_jpeg, jpeg_shape
from gigatile.training.batches import Form
from gigatile.training.order import Samples, show


class Tiles:
    """The tiles of a split: images (side, side, 3) uint8, labels () int32, numbers of classes.

    Decoding releases the interpreter's lock, so threads use as many cores.
    """

    def __init__(self, reader: ShardReader) -> None:
        self._reader = reader

    def forms(self, record: int) -> tuple[Form, Form]:
        """Return the forms of image and label; see `batches.Source`."""
        try:
            shape = jpeg_shape(self._reader.image(record))
        except ValueError as error:
            raise self._reader.damaged(record, f"its image: {error}") from None
        return Form(shape, np.dtype(np.uint8)), Form((), np.dtype(np.int32))

    def fill(self, samples: Samples, images: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        """Read and decode tiles into arrays; see `batches.Source`."""
        begun = time.perf_counter()
        numbers = samples.records.tolist()
        labels[...] = self._reader.classes_at(samples.records)
        files = [self._reader.image(number) for number in numbers]
        read = time.perf_counter()
        upright = np.empty(images.shape[1:], np.uint8)
        for image, data, view, number in zip(
            images, files, samples.views.tolist(), numbers, strict=True
        ):
            try:
                if view == 0:
                    decode_jpeg(data, into=image)
                else:
                    _copy(show(decode_jpeg(data, into=upright), view), image)
            except ValueError as error:
                raise self._reader.damaged(number, f"its image: {error}") from None
        return read - begun, time.perf_counter() - read


def _copy(shown: np.ndarray, image: np.ndarray) -> None:
    """Copy pixels, (side, side, 3), that may lie in memory in another order."""
    if shown[0].flags.c_contiguous:
        image[...] = shown
        return
    # NumPy copies triples one at a time: by colour it takes a fifth of the time.
    for colour in range(3):
        image[..., colour] = shown[..., colour]
