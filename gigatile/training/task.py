"""The interface between the training loop and a task."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import keras
import tensorflow as tf

from gigatile.models.networks import Networks
from gigatile.records.shards import CACHE_GB, ShardReader
from gigatile.settings.train import TrainSettings
from gigatile.training.batches import Batch, SampleSource
from gigatile.training.ranks import Ranks
from gigatile.training.sample_order import Sampling


class TrainingTask(ABC):
    """What the training loop needs from a task.

    Attributes:
        name: of the task, as in `gigatile.tasks.TASKS`.
        samples: plural name of the samples, for messages.
        metrics: names of the entries of `sums` besides `loss`: metrics, or terms of the loss. They
            are the columns of history.tsv.
        shares_samples: whether all ranks work on each sample together, as on a whole slide. Then
            every rank gets the whole global batch, and `shared_gradients` takes the place of
            `gradients`.
    """

    name: ClassVar[str]
    samples: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]
    shares_samples: ClassVar[bool] = False

    def reader(self, manifest: Path, split: str, cache_gb: float = CACHE_GB) -> Any:
        """Open the shards of a split; see `ShardReader`."""
        return ShardReader(manifest, split, cache_gb)

    @abstractmethod
    def source(self, reader: Any, augmented: bool = True) -> SampleSource:
        """Return the reader of samples.

        Args:
            reader: of the training split.
            augmented: whether the samples are changed at random, as the settings say.
        """

    @abstractmethod
    def sampling(self, reader: Any, settings: TrainSettings) -> Sampling:
        """Return what the order of the samples depends on.

        Raises:
            UserError: no sample is left with these settings, or they do not fit the data.
        """

    def configure(self, reader: Any, settings: TrainSettings) -> None:
        """Take the settings of the loss; called before the first `sums`."""
        return None

    @abstractmethod
    def networks(self, reader: Any, settings: TrainSettings, pretrained: bool) -> Networks:
        """Build the untrained networks.

        Args:
            reader: of the training split.
            settings: the model's name, initial weights, precision and seed.
            pretrained: whether to load `settings.weights`. Only rank 0 does; the others build the
                same layers and receive the weights from it.
        """

    @abstractmethod
    def sums(self, outputs: Any, targets: Any, weights: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return weighted sums over the samples of a batch: `loss`, and each of `metrics`.

        Args:
            outputs: of `Networks.trained`.
            targets: of the batch, in the structure of `SampleSource.specs`, or as `mixed` returns
                them.
            weights: (n,) float32; 0 for padding.
        """

    def mixed(self, inputs: Any, targets: Any, weights: tf.Tensor) -> tuple[Any, Any]:
        """Return inputs and targets with which `gradients` trains: samples mixed with each other.

        It runs inside a `tf.function`. By default, nothing is mixed.

        Args:
            inputs, targets: of the batch, in the structure of `SampleSource.specs`.
            weights: (n,) float32; 0 for padding.
        """
        return inputs, targets

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
            scale: divides the sum of the losses by the size of the global batch and applies the
                loss scale of mixed precision. The gradient is that of its result.
        """
        inputs, targets = self.mixed(inputs, targets, weights)
        with tf.GradientTape() as tape:
            sums = self.sums(network(inputs, training=True), targets, weights)
            loss = scale(sums["loss"])
        return sums, tape.gradient(loss, [weight.value for weight in network.trainable_variables])

    def shared_gradients(
        self,
        network: keras.Model,
        batch: Batch,
        scale: Callable[[tf.Tensor], tf.Tensor],
        ranks: Ranks,
    ) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
        """Return `sums` of a global batch, and this rank's part of the gradients.

        For tasks with `shares_samples`. It does not run inside a `tf.function`.

        Args:
            network: `Networks.trained`.
            batch: the global batch, the same on every rank.
            scale: as for `gradients`.
            ranks: the processes that share the batch. All of them call this together.

        Returns:
            The sums, equal on every rank, and a gradient for each trainable variable. The gradient
            of the loss is the sum over all ranks.
        """
        raise NotImplementedError

    def row_weights(self, inputs: Any, weights: tf.Tensor) -> tf.Tensor:
        """Return the weights of the rows that batch normalisation averages over.

        Override it if a sample has several rows, some of which may be padding.

        Args:
            inputs: of the batch.
            weights: of the samples, (n,) float32.

        Returns:
            float32, of the shape of the first dimensions of the layers' inputs: for bags of k
            instances (n, k), or (n * k,) if the network flattens them.
        """
        return weights

    @abstractmethod
    def describe_data(self, reader: Any) -> str:
        """Return a short description of the training data, for the log."""

    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """Return the settings that the trained model depends on, except `train`."""

    def metadata(self, reader: Any) -> Mapping[str, Any]:
        """Return what else is written to the model's settings.json, such as its classes."""
        return {}
