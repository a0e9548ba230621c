"""What a training step does, whatever the task, and what is averaged over steps."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gigatile.settings.train import TrainSettings
from gigatile.training.batches import Batch
from gigatile.training.normalisation import Moments, SharedNormalisation
from gigatile.training.ranks import Ranks

# From what the network gives for a batch, its labels and the samples' weights to two sums over the
# samples: of the loss, and of a measure that people know.
Sums = Callable[[Any, tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]

# Share of the moving average of the weights that a step keeps, once training has gone on for long.
AVERAGE = 0.999


class Learner:
    """A network, its optimizer, and a training step over all ranks.

    Beside the weights that are trained runs their moving average, which is what is validated and
    saved: it takes the noise of the last steps out of the result (Polyak and Juditsky 1992,
    https://doi.org/10.1137/0330046).

    Attributes:
        variables: everything that a checkpoint holds: of the model, of the optimizer, and the
            averages. They are the same on every rank.
        has_statistics: whether the network has any that training gathers (batch normalisation).
    """

    def __init__(
        self, network: keras.Model, sums: Sums, settings: TrainSettings, ranks: Ranks
    ) -> None:
        """Begin with the weights that the network has.

        Args:
            network: from images to what `sums` takes.
            sums: the task's.
            settings: step size and arithmetic.
            ranks: the processes that train together.
        """
        self._network, self._sums, self._ranks = network, sums, ranks
        self._weights = network.trainable_variables
        optimizer = keras.optimizers.Adam(settings.learning_rate)
        if settings.mixed_precision:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        optimizer.build(self._weights)
        self._optimizer = optimizer
        # From an array: made from another variable's value it would be that same variable.
        self._averages = [
            keras.Variable(weight.numpy(), trainable=False, name=f"average_{number}")
            for number, weight in enumerate(self._weights)
        ]
        self.variables = [*network.variables, *optimizer.variables, *self._averages]
        self._normalisation = SharedNormalisation(network, ranks)
        self.has_statistics = bool(self._normalisation.layers)
        self.step = tf.function(self._step, reduce_retracing=True)
        self._see = tf.function(self._moments, reduce_retracing=True)

    def _step(
        self,
        images: tf.Tensor,
        labels: tf.Tensor,
        weights: tf.Tensor,
        total: tf.Tensor,
        wishes: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Update the weights by the mean gradient over the global batch.

        Each rank divides by the samples of all ranks and the gradients are summed, so the update
        is the same however the batch is divided.

        Args:
            images, labels, weights, total: a `Batch`.
            wishes: (n,) float32 of this rank's.

        Returns:
            The weighted sums of loss and of the measure over this rank's samples; the sum of the
            wishes of all ranks: they travel with the gradients, as a message of their own would
            cost as much time again; and how long the ranks' exchange took, in seconds. On a GPU,
            whose work runs behind the calls, that holds what is left of the backward pass.
        """
        with tf.GradientTape() as tape:
            with self._normalisation.weighted(weights):
                found = self._network(images, training=True)
            loss, measured = self._sums(found, labels, weights)
            mean = self._optimizer.scale_loss(loss / total)
        gradients = tape.gradient(mean, [weight.value for weight in self._weights])
        with tf.control_dependencies(gradients):
            begun = _now()
        *gradients, agreed = self._ranks.sum_in_step([*gradients, wishes])
        with tf.control_dependencies([*gradients, agreed]):
            exchange = _now() - begun
        self._optimizer.apply(gradients, self._weights)
        # The window grows with the steps, so that a short training does not drag its start along.
        done = tf.cast(self._optimizer.iterations, tf.float32)
        kept = tf.minimum(AVERAGE, (1 + done) / (10 + done))
        kept = tf.cast(kept, self._averages[0].dtype)
        for average, weight in zip(self._averages, self._weights, strict=True):
            average.assign(kept * average + (1 - kept) * weight)
        return loss, measured, agreed, exchange

    def _moments(self, images: tf.Tensor, weights: tf.Tensor) -> list[Moments]:
        """Return what each batch normalisation finds in a batch."""
        with self._normalisation.weighted(weights) as found:
            self._network(images, training=True)
        return [found[number] for number in range(len(self._normalisation.layers))]

    @contextlib.contextmanager
    def averaged(self, batches: Iterable[Batch]) -> Iterator[None]:
        """Use the averaged weights in the model within the block.

        The statistics that steps have gathered are those of other weights; with the averaged ones a
        batch normalisation that uses them computes something else. They are computed again, as
        torch.optim.swa_utils.update_bn does (Izmailov et al. 2018,
        https://arxiv.org/abs/1803.05407, section 3.1): the mean of the batches' statistics, here by
        the samples that each shows.

        Args:
            batches: what to gather them from, at the same time on every rank; not looked at where
                the network has no statistics.
        """
        kept = [
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
            self._set_statistics(kept)

    def _gather_statistics(self, batches: Iterable[Batch]) -> None:
        sums: list[list[np.ndarray]] = []
        samples = 0
        for batch in batches:
            found = self._see(tf.convert_to_tensor(batch.images), batch.weights)
            values = [[batch.total * np.array(v, np.float64) for v in pair] for pair in found]
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
        for average, weight in zip(self._averages, self._weights, strict=True):
            held = np.array(weight)
            weight.assign(average)
            average.assign(held)


def _now() -> tf.Tensor:
    """Return seconds at this place of a graph, of a clock that counts as deterministic."""
    return tf.numpy_function(time.perf_counter, [], tf.float64)
