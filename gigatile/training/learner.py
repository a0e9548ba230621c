"""The training step, the same for all tasks, and the moving average of the weights."""

import contextlib
import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from gigatile.settings.train import TrainSettings
from gigatile.training.batches import Batch
from gigatile.training.normalisation import Moments, SharedNormalisation, layers_of
from gigatile.training.optimizers import Optimizer
from gigatile.training.ranks import Ranks
from gigatile.training.task import TrainingTask

# Decay of the moving average of the weights after many steps.
AVERAGE_DECAY = 0.999


def check_network(network: keras.Model, ranks: Ranks) -> None:
    """Raise ValueError if training the network would depend on the number of ranks.

    Layers that differ between the ranks, or draw random numbers, which are the same on all ranks,
    would change the result without an error.
    """
    random = [
        layer.name
        for layer in layers_of(network)
        if any("seed_generator" in variable.path for variable in layer.variables)
    ]
    if random:
        raise ValueError(f"random layers depend on the number of ranks: {', '.join(random)}")
    layers = ", ".join(
        f"{type(layer).__name__} {[tuple(weight.shape) for weight in layer.weights]}"
        for layer in layers_of(network)
    )
    digest = np.frombuffer(hashlib.sha256(layers.encode()).digest(), np.int64)
    if ranks.size > 1 and (ranks.gather(digest, "layers") != digest).any():
        raise ValueError(f"the ranks have built different layers; {ranks.name}: {layers}")


@dataclass(frozen=True)
class Step:
    """The result of a step.

    Attributes:
        sums: weighted sums of `loss` and of the task's metrics over this rank's samples, float32.
        agreed: the sum of the requests of all ranks, which travels with the gradients, as a
            separate message would double the latency.
        exchange: seconds of the exchange between ranks. On a GPU, which runs asynchronously, they
            include the rest of the backward pass.
        gradient_norm: of all weights together, summed over the ranks, before clipping.
    """

    sums: np.ndarray
    agreed: np.ndarray
    exchange: float
    gradient_norm: float


class Learner:
    """A network with its optimizer and its training step over all ranks.

    It also keeps a moving average of the weights, which is what is validated and saved. Averaging
    removes the noise of the last steps (Polyak and Juditsky 1992, https://doi.org/10.1137/0330046).

    Attributes:
        variables: everything that a checkpoint contains: variables of the model and the optimizer,
            and the averages. They are the same on every rank.
        has_statistics: whether the network has moving statistics (batch normalisation).
    """

    def __init__(
        self,
        network: keras.Model,
        task: TrainingTask,
        settings: TrainSettings,
        ranks: Ranks,
        backbone: Sequence[keras.Layer] = (),
    ) -> None:
        """Create the optimizer and the averages from the current weights of the network.

        Args:
            network: `Networks.trained` of the task.
            task: computes losses and gradients.
            settings: optimizer and precision.
            ranks: the processes that train together.
            backbone: see `Networks`.
        """
        self._network, self._task, self._ranks = network, task, ranks
        self._weights = network.trainable_variables
        of_backbone = {weight.path for layer in backbone for weight in layer.trainable_weights}
        self._optimizer = Optimizer(settings, self._weights, of_backbone)
        # Each average with its weight. `.numpy()` copies; a Variable created from another one's
        # value would share its memory.
        self._averages = [
            (keras.Variable(weight.numpy(), trainable=False, name=f"average_{number}"), weight)
            for number, weight in enumerate(self._weights if settings.average else ())
        ]
        self._parts = settings.accumulate
        averages = [average for average, _ in self._averages]
        self.variables = [*network.variables, *self._optimizer.variables, *averages]
        self._normalisation = SharedNormalisation(network, ranks)
        self.has_statistics = bool(self._normalisation.layers)
        self._graph = tf.function(self._step, reduce_retracing=True)
        self._evaluation_graph = tf.function(self._evaluate, reduce_retracing=True)
        self._gradients_graph = tf.function(self._gradients, reduce_retracing=True)
        self._update_graph = tf.function(self._update)
        self._moments_graph = tf.function(self._moments, reduce_retracing=True)

    def step(
        self,
        batch: Batch,
        inputs: Any,
        requests: np.ndarray,
        learning_rate: float,
        backbone_factor: float = 1,
    ) -> Step:
        """Update the weights with the mean gradient over the global batch.

        Each rank divides its gradient by the number of samples of all ranks, and the gradients are
        summed. So the update does not depend on how the batch is divided.

        Args:
            batch: this rank's slice.
            inputs: `batch.inputs` as tensors.
            requests: (n,) float32 of this rank.
            learning_rate: of this step.
            backbone_factor: of the learning rate of the backbone.
        """
        self._optimizer.set_learning_rate(learning_rate, backbone_factor)
        if self._task.shares_samples:
            sums, gradients = self._task.shared_gradients(
                self._network, batch, partial(self._scaled, batch.total), self._ranks
            )
            results = self._update_graph(sums, gradients, requests)
        elif self._parts > 1:
            results = self._update_graph(*self._accumulated(batch, inputs), requests)
        else:
            results = self._graph(
                inputs, batch.targets, batch.weights, np.float32(batch.total), requests
            )
        sums, agreed, exchange, norm = results
        return Step(np.array(sums), np.array(agreed), float(exchange), float(norm))

    def evaluate(self, inputs: Any, targets: Any, weights: np.ndarray) -> np.ndarray:
        """Return the weighted sums of `loss` and of the task's metrics over this rank's samples.

        The weights do not change, and layers compute what they compute in prediction.
        """
        return np.array(self._evaluation_graph(inputs, targets, weights))

    def _evaluate(self, inputs: Any, targets: Any, weights: tf.Tensor) -> tf.Tensor:
        return self._stacked(
            self._task.sums(self._network(inputs, training=False), targets, weights)
        )

    def _stacked(self, sums: dict[str, tf.Tensor]) -> tf.Tensor:
        names = ("loss", *self._task.metrics)
        return tf.stack([tf.cast(sums[name], tf.float32) for name in names])

    def _step(
        self, inputs: Any, targets: Any, weights: tf.Tensor, total: tf.Tensor, requests: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        return self._update(*self._gradients(inputs, targets, weights, total), requests)

    def _accumulated(
        self, batch: Batch, inputs: Any
    ) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
        """Return sums and gradients of a slice, of which only a part is in memory at a time."""
        size = len(batch.weights) // self._parts
        total = np.float32(batch.total)
        added = None
        for first in range(0, len(batch.weights), size):
            arrays = (inputs, batch.targets, batch.weights)
            part = tree.map_structure(lambda a, first=first: a[first : first + size], arrays)
            result = self._gradients_graph(*part, total)
            added = result if added is None else tree.map_structure(tf.add, added, result)
        assert added is not None
        return added

    def _gradients(
        self, inputs: Any, targets: Any, weights: tf.Tensor, total: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
        with self._normalisation.weighted(self._task.row_weights(inputs, weights)):
            return self._task.gradients(
                self._network, inputs, targets, weights, partial(self._scaled, total)
            )

    def _scaled(self, total: Any, loss: tf.Tensor) -> tf.Tensor:
        return self._optimizer.scale_loss(loss / tf.cast(total, loss.dtype))

    def _update(
        self, sums: dict[str, tf.Tensor], gradients: Sequence[tf.Tensor], requests: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Sum the gradients over the ranks and apply them."""
        with tf.control_dependencies(gradients):
            start = _now()
        *gradients, agreed = self._ranks.sum_in_step([*gradients, requests])
        with tf.control_dependencies([*gradients, agreed]):
            exchange = _now() - start
        norm = self._optimizer.apply(gradients)
        self._update_averages()
        return self._stacked(sums), agreed, exchange, norm

    def _update_averages(self) -> None:
        # The decay grows with the steps, so that the average of a short training forgets its start.
        done = tf.cast(self._optimizer.iterations, tf.float32)
        decay = tf.minimum(AVERAGE_DECAY, (1 + done) / (10 + done))
        for average, weight in self._averages:
            share = tf.cast(decay, average.dtype)
            average.assign(share * average + (1 - share) * weight)

    def _moments(self, inputs: Any, weights: tf.Tensor) -> list[Moments]:
        """Return mean and variance of the input of each batch normalisation."""
        rows = self._task.row_weights(inputs, weights)
        with self._normalisation.weighted(rows) as moments:
            self._network(inputs, training=True)
        return [moments[number] for number in range(len(self._normalisation.layers))]

    @contextlib.contextmanager
    def averaged(self, batches: Iterable[Batch]) -> Iterator[None]:
        """Swap the averaged weights, if there are any, into the model for the block.

        The moving statistics of batch normalisation belong to the current weights, not to the
        averaged ones. So they are computed again for the averaged weights, like
        torch.optim.swa_utils.update_bn does (Izmailov et al. 2018,
        https://arxiv.org/abs/1803.05407, section 3.1): the mean of the statistics of the batches,
        here weighted by their number of samples.

        Args:
            batches: to compute the statistics from; all ranks must call it together. Not used if
                the network has no moving statistics.
        """
        saved = [
            [np.array(v) for v in (layer.moving_mean, layer.moving_variance)]
            for layer in self._normalisation.layers
        ]
        self._swap()
        try:
            if self.has_statistics:
                self._gather_statistics(batches)
            yield
        finally:
            self._swap()
            self._set_statistics(saved)

    def _gather_statistics(self, batches: Iterable[Batch]) -> None:
        sums: list[list[np.ndarray]] = []
        samples = 0
        for batch in batches:
            inputs = tree.map_structure(tf.convert_to_tensor, batch.inputs)
            moments = self._moments_graph(inputs, batch.weights)
            values = [[batch.total * np.array(v, np.float64) for v in pair] for pair in moments]
            if sums:
                values = [
                    [a + b for a, b in zip(*pairs, strict=True)]
                    for pairs in zip(sums, values, strict=True)
                ]
            sums, samples = values, samples + batch.total
        self._set_statistics([[value / samples for value in pair] for pair in sums])

    def _set_statistics(self, values: Sequence[Sequence[np.ndarray]]) -> None:
        for layer, (mean, variance) in zip(self._normalisation.layers, values, strict=True):
            layer.moving_mean.assign(mean)
            layer.moving_variance.assign(variance)

    def _swap(self) -> None:
        for average, weight in self._averages:
            value = np.array(weight)
            weight.assign(average)
            average.assign(value)


def _now() -> tf.Tensor:
    """Return seconds when a graph reaches this op.

    `tf.timestamp` is refused when deterministic ops are enabled; a NumPy function is not.
    """
    return tf.numpy_function(time.perf_counter, [], tf.float64)
