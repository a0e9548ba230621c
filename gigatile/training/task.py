"""The interface between the training loop and a task."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import keras
import tensorflow as tf

from gigatile.models.networks import Networks
from gigatile.records.shards import ShardReader
from gigatile.settings.train import TrainSettings
from gigatile.training.batches import SampleSource
from gigatile.training.sample_order import Sampling


class TrainingTask(ABC):
    """What the training loop needs from a task.

    Attributes:
        name: of the task, as in `gigatile.tasks.TASKS`.
        samples: plural name of the samples, for messages.
        metrics: names of the other entries of `sums`: metrics, or terms of the loss.
    """

    name: ClassVar[str]
    samples: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]

    @abstractmethod
    def source(self, reader: ShardReader) -> SampleSource:
        """Return the reader of samples."""

    @abstractmethod
    def sampling(self, reader: ShardReader, settings: TrainSettings) -> Sampling:
        """Return what the order of the samples depends on.

        Raises:
            UserError: no sample is left with these settings, or they do not fit the data.
        """

    @abstractmethod
    def networks(self, reader: ShardReader, settings: TrainSettings, pretrained: bool) -> Networks:
        """Build the untrained networks.

        Args:
            reader: of the training split.
            settings: the model's name, initial weights, precision and seed.
            pretrained: whether to load `settings.weights`; only rank 0 does.
        """

    @abstractmethod
    def sums(self, outputs: Any, targets: Any, weights: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return weighted sums over the samples of a batch: `loss`, and each of `metrics`.

        Args:
            outputs: of `Networks.trained`.
            targets: of the batch, in the structure of `SampleSource.specs`.
            weights: (n,) float32; 0 for padding.
        """

    def gradients(
        self,
        network: keras.Model,
        inputs: Any,
        targets: Any,
        weights: tf.Tensor,
        scale: Callable[[tf.Tensor], tf.Tensor],
    ) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
        """Return `sums` of a batch, and the gradient of each trainable variable.

        A task may override this, for example to compute the gradient in several passes. It runs
        inside a `tf.function`.

        Args:
            network: `Networks.trained`.
            inputs, targets, weights: of the batch.
            scale: turns the sum of the losses into what must be differentiated: the mean over the
                global batch, multiplied by the loss scale of mixed precision.
        """
        with tf.GradientTape() as tape:
            sums = self.sums(network(inputs, training=True), targets, weights)
            loss = scale(sums["loss"])
        return sums, tape.gradient(loss, [weight.value for weight in network.trainable_variables])

    @abstractmethod
    def describe_data(self, reader: ShardReader) -> str:
        """Return a short description of the training data, for the log."""

    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """Return the settings that the trained model depends on, except `train`."""

    def metadata(self, reader: ShardReader) -> Mapping[str, Any]:
        """Return what else is written to the model's settings.json, such as its classes."""
        return {}
