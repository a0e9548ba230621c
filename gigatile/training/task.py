"""What the training loop asks of a task: its samples, its network, and what is to be made small."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import tensorflow as tf

from gigatile.records.shards import ShardReader
from gigatile.settings.train import TrainSettings
from gigatile.training.batches import Source
from gigatile.training.order import Sampling


@dataclass(frozen=True)
class Networks:
    """One set of weights, seen from two sides.

    Attributes:
        model: from images to scores; what is saved, and used after the training.
        trained: from images to what the task's `sums` takes.
    """

    model: keras.Model
    trained: keras.Model


class Task(Protocol):
    """A task; the loop knows no more of it than this.

    Attributes:
        samples: what its samples are called, in the plural.
        measure: the name of what `sums` gives beside the loss.
    """

    samples: str
    measure: str

    def source(self, reader: ShardReader) -> Source:
        """Return where samples come from."""

    def sampling(self, reader: ShardReader, settings: TrainSettings) -> Sampling:
        """Return what decides their order.

        Raises:
            UserError: the settings leave nothing to train on, or do not fit the data.
        """

    def networks(self, reader: ShardReader, settings: TrainSettings, pretrained: bool) -> Networks:
        """Return the untrained model; `pretrained` says whether to load `settings.weights`."""

    def sums(
        self, found: Any, labels: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the weighted sums of loss and measure over a batch.

        Args:
            found: what `Networks.trained` gives for its images.
            labels: of the batch.
            weights: (n,) float32; 0 for a sample that does not count.
        """

    def told(self, reader: ShardReader) -> str:
        """Say in a few words what there is to learn from."""

    def settings(self) -> Mapping[str, Any]:
        """Return the settings that a trained model depends on, beside those of the training."""

    def described(self, reader: ShardReader) -> Mapping[str, Any]:
        """Return what a model's outputs stand for, as it is written beside the model."""
