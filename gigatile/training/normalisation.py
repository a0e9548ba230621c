"""Batch normalisation that sees the global batch, however many ranks share it.

Keras' layer uses the mean and variance of its input: of one rank's part of the batch, with the
filler of the last batch. Here the layers of a network in training use the mean and variance over
all ranks, weighted by the samples' weights. Nothing else in them changes, so a saved model has
Keras' own layers.
"""

import contextlib
from collections.abc import Callable, Iterator

import keras
import tensorflow as tf

from gigatile.training.ranks import Ranks

# Mean and variance of each channel, (channels,) float32.
Moments = tuple[tf.Tensor, tf.Tensor]


class SharedNormalisation:
    """The batch normalisations of a network, with mean and variance over the samples of all ranks.

    Attributes:
        layers: the batch normalisations, in the order of the network.
    """

    def __init__(self, network: keras.Model, ranks: Ranks) -> None:
        """Replace how the layers compute mean and variance within `weighted`.

        Each layer needs one exchange in the forward pass and one in the backward pass; with one
        rank there is none.
        """
        self.layers = [
            layer
            for layer in _layers_of(network)
            if isinstance(layer, keras.layers.BatchNormalization)
        ]
        self._ranks = ranks
        self._weights: tf.Tensor | None = None
        self._found: dict[int, Moments] = {}
        for number, layer in enumerate(self.layers):
            if layer.renorm or layer.axis not in (-1, layer.input_spec.ndim - 1):
                raise ValueError(
                    f"{layer.name}: only plain normalisation of the last axis is shared"
                )
            layer._moments = self._moments_of(number, layer._moments)

    @contextlib.contextmanager
    def weighted(self, weights: tf.Tensor) -> Iterator[dict[int, Moments]]:
        """Count samples by `weights`, (n,) float32, in what is called within the block.

        Gives the moments that the layers have used, by their numbers.
        """
        self._weights, self._found = weights, {}
        try:
            yield self._found
        finally:
            self._weights = None

    def _moments_of(
        self, number: int, stock: Callable[[tf.Tensor, None], Moments]
    ) -> Callable[[tf.Tensor, None], Moments]:
        def moments(inputs: tf.Tensor, mask: None) -> Moments:
            if self._weights is None or mask is not None:
                return stock(inputs, mask)
            found = moments_over_ranks(inputs, self._weights, self._ranks, f"moments/{number}")
            self._found[number] = found
            return found

        return moments


def _layers_of(network: keras.Model) -> Iterator[keras.Layer]:
    """Yield the layers of a network, and of the models that are layers of it."""
    for layer in network.layers:
        if isinstance(layer, keras.Model):
            yield from _layers_of(layer)
        else:
            yield layer


def moments_over_ranks(inputs: tf.Tensor, weights: tf.Tensor, ranks: Ranks, name: str) -> Moments:
    """Return mean and variance of each channel over the weighted samples of all ranks.

    Each rank's own are put together as Chan, Golub and LeVeque do (1979,
    http://i.stanford.edu/pub/cstr/reports/cs/tr/79/773/CS-TR-79-773.pdf, eq. 2.1), where the
    difference of two large numbers never represents a small variance. Every rank computes them from
    the same numbers, so they are the same on each to the last bit.

    Args:
        inputs: (n, …, channels) float32.
        weights: (n,) float32; samples of weight 0 don't count. Not all of all ranks are 0.
        ranks: that share the batch.
        name: of the exchange; none else may have it.
    """
    axes = list(range(inputs.shape.rank - 1))
    weights = tf.cast(weights, inputs.dtype)
    each = tf.reshape(weights, (-1, *[1] * (inputs.shape.rank - 1)))
    places = tf.cast(tf.size(inputs[0, ..., 0]), inputs.dtype)
    count = tf.reduce_sum(weights) * places
    mean = tf.math.divide_no_nan(tf.reduce_sum(inputs * each, axes), count)
    squares = tf.reduce_sum(tf.math.squared_difference(inputs, mean) * each, axes)
    variance = tf.math.divide_no_nan(squares, count)
    if ranks.size == 1:
        return mean, variance
    shares = ranks.gather_in_step(tf.concat([count[None], mean, variance], 0), name)
    means, variances = tf.split(shares[:, 1:], 2, axis=1)
    share = (shares[:, 0] / tf.reduce_sum(shares[:, 0]))[:, None]
    whole = tf.reduce_sum(share * means, 0)
    spread = variances + tf.math.squared_difference(means, whole)
    return whole, tf.reduce_sum(share * spread, 0)
