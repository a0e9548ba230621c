"""Batch normalisation over the global batch, for any number of ranks.

Keras' layer uses the mean and variance of its input: this rank's slice of the batch, including the
padding of the last batch. Here the layers use the mean and variance over all ranks, weighted by the
sample weights. Nothing else changes, so a saved model has Keras' own layers.
"""

import contextlib
from collections.abc import Callable, Iterator

import keras
import tensorflow as tf

from gigatile.training.ranks import Ranks

# Mean and variance of each channel, (channels,) float32.
Moments = tuple[tf.Tensor, tf.Tensor]


class SharedNormalisation:
    """The batch normalisations of a network, with mean and variance over all ranks.

    Attributes:
        layers: the batch normalisations, in the order of the network.
    """

    def __init__(self, network: keras.Model, ranks: Ranks) -> None:
        """Make the layers compute mean and variance over all ranks within `weighted`.

        Each layer needs one collective in the forward pass and one in the backward pass; a single
        rank needs none.
        """
        self.layers = [
            layer
            for layer in layers_of(network)
            # A frozen layer uses fixed statistics.
            if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
        ]
        self._ranks = ranks
        self._weights: tf.Tensor | None = None
        self._moments: dict[int, Moments] = {}
        for number, layer in enumerate(self.layers):
            if layer.renorm or layer.axis not in (-1, layer.input_spec.ndim - 1):
                raise ValueError(
                    f"{layer.name}: only plain normalisation of the last axis is shared"
                )
            layer._moments = self._replace_moments(number, layer._moments)

    @contextlib.contextmanager
    def weighted(self, weights: tf.Tensor) -> Iterator[dict[int, Moments]]:
        """Weight the rows of the inputs within the block.

        Args:
            weights: float32; its shape is that of the first dimensions of each layer's input.

        Yields the moments that the layers have used, by the number of the layer.
        """
        self._weights, self._moments = weights, {}
        try:
            yield self._moments
        finally:
            self._weights = None

    def _replace_moments(
        self, number: int, stock: Callable[[tf.Tensor, None], Moments]
    ) -> Callable[[tf.Tensor, None], Moments]:
        def moments(inputs: tf.Tensor, mask: None) -> Moments:
            if self._weights is None or mask is not None:
                return stock(inputs, mask)
            result = moments_over_ranks(inputs, self._weights, self._ranks, f"moments/{number}")
            self._moments[number] = result
            return result

        return moments


def layers_of(network: keras.Model) -> Iterator[keras.Layer]:
    """Yield the layers of a network and of its nested models."""
    for layer in network.layers:
        if isinstance(layer, keras.Model):
            yield from layers_of(layer)
        else:
            yield layer


def moments_over_ranks(inputs: tf.Tensor, weights: tf.Tensor, ranks: Ranks, name: str) -> Moments:
    """Return mean and variance of each channel over the weighted samples of all ranks.

    The moments of the ranks are combined with the formula of Chan, Golub and LeVeque (1979,
    http://i.stanford.edu/pub/cstr/reports/cs/tr/79/773/CS-TR-79-773.pdf, eq. 2.1), which avoids
    catastrophic cancellation. All ranks compute it from the same numbers, so the results are equal
    to the last bit.

    Args:
        inputs: (n, …, channels) float32.
        weights: float32, of the shape of the first dimensions of `inputs`, for example (n,); rows
            of weight 0 are ignored. At least one weight of all ranks is positive.
        ranks: the processes that share the batch.
        name: of the collective; must be unique.
    """
    axes = list(range(inputs.shape.rank - 1))
    weights = tf.cast(weights, inputs.dtype)
    rows = weights.shape.rank
    tf.debugging.assert_equal(
        tf.shape(inputs)[:rows],
        tf.shape(weights),
        f"{name}: the weights are not those of the rows; see TrainingTask.row_weights",
    )
    by_row = weights[(..., *[None] * (inputs.shape.rank - rows))]
    positions = tf.cast(tf.reduce_prod(tf.shape(inputs)[rows:-1]), inputs.dtype)
    count = tf.reduce_sum(weights) * positions
    mean = tf.math.divide_no_nan(tf.reduce_sum(inputs * by_row, axes), count)
    squares = tf.reduce_sum(tf.math.squared_difference(inputs, mean) * by_row, axes)
    variance = tf.math.divide_no_nan(squares, count)
    if ranks.size == 1:
        return mean, variance
    gathered = ranks.gather_in_step(tf.concat([count[None], mean, variance], 0), name)
    means, variances = tf.split(gathered[:, 1:], 2, axis=1)
    share = (gathered[:, 0] / tf.reduce_sum(gathered[:, 0]))[:, None]
    whole = tf.reduce_sum(share * means, 0)
    spread = variances + tf.math.squared_difference(means, whole)
    return whole, tf.reduce_sum(share * spread, 0)
