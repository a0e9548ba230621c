"""Training of the regression."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gigatile.models import load_builder
from gigatile.models.networks import Networks, configure_keras
from gigatile.records.example import decode_example
from gigatile.records.shards import ShardReader
from gigatile.records.tfrecord import read_sized
from gigatile.settings.train import TrainSettings
from gigatile.training.batches import ArraySpec
from gigatile.training.sample_order import Samples, Sampling, window_size
from gigatile.training.task import TrainingTask


def read_image(reader: ShardReader, number: int, side: int) -> tuple[np.ndarray, float]:
    """Return pixels (side, side, 3) uint8, and brightness."""
    features = decode_example(read_sized(*reader.locate(number)))
    pixels = np.frombuffer(features["pixels"], np.uint8).reshape(side, side, 3)
    return pixels, float(features["brightness"])


class Images:
    """Reads images: a dictionary of pixels and a mask, and a dictionary of targets."""

    def __init__(self, reader: ShardReader, side: int) -> None:
        self._reader, self._side = reader, side

    def specs(self, samples: Samples) -> tuple[dict[str, ArraySpec], dict[str, ArraySpec]]:
        """See `SampleSource`."""
        pixels = ArraySpec((self._side, self._side, 3), np.dtype(np.uint8))
        return {"pixels": pixels}, {"brightness": ArraySpec((), np.dtype(np.float32))}

    def fill(self, samples: Samples, inputs: Any, targets: Any) -> tuple[float, float]:
        """See `SampleSource`."""
        for index, number in enumerate(samples.records.tolist()):
            pixels, brightness = read_image(self._reader, number, self._side)
            inputs["pixels"][index] = pixels
            targets["brightness"][index] = brightness
        return 0.0, 0.0


class ImageBrightness(TrainingTask):
    """Squared error of the brightness; see `TrainingTask`."""

    name, samples, metrics = "image_brightness", "images", ("error",)

    def __init__(self, side: int) -> None:
        self._side = side

    def source(self, reader: ShardReader, augmented: bool = True) -> Images:
        """Return the reader of images."""
        return Images(reader, self._side)

    def sampling(self, reader: ShardReader, settings: TrainSettings) -> Sampling:
        """Return what the order of the images depends on."""
        window = window_size(settings.shuffle_mb, reader.bytes, len(reader.counts))
        return Sampling(reader.counts, settings.seed, window)

    def networks(self, reader: ShardReader, settings: TrainSettings, pretrained: bool) -> Networks:
        """Build the network."""
        configure_keras(settings)
        pixels = keras.Input((self._side, self._side, 3), name="pixels")
        features = load_builder(settings.model)(pixels, settings)
        brightness = keras.layers.Dense(1, dtype="float32")(features)
        model = keras.Model({"pixels": pixels}, brightness)
        return Networks(model, model)

    def sums(self, outputs: Any, targets: Any, weights: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the weighted sums of squared and absolute errors."""
        errors = outputs[:, 0] - targets["brightness"]
        return {
            "loss": tf.reduce_sum(errors**2 * weights),
            "error": tf.reduce_sum(tf.abs(errors) * weights),
        }

    def describe_data(self, reader: ShardReader) -> str:
        """Return the number of images."""
        return f"{len(reader)} images"

    def settings(self) -> Mapping[str, Any]:
        """Return how images were prepared."""
        return {"images": {"side": self._side}}


def training_task(settings: Mapping[str, Any]) -> TrainingTask:
    """Return the task for its settings."""
    return ImageBrightness(settings["images"]["side"])
