"""From the embeddings of all positions of a slide to one embedding, window by window.

An aggregator sees the embeddings once and keeps a small state, so its memory does not depend on the
number of positions. States of different windows can be merged in any order. In a second pass, it
returns a scalar for each window, which has the gradient of the loss.
"""

from abc import ABC, abstractmethod

import keras
import numpy as np
import tensorflow as tf


class Aggregator(ABC):
    """Pools embeddings (n, channels) of the positions of a slide to (channels,).

    A state is a tensor (rows, channels) float64, so that sums over millions of positions are exact
    to single precision, whatever their order.
    """

    rows: int

    @property
    def variables(self) -> list[keras.Variable]:
        """The trainable variables."""
        return []

    @abstractmethod
    def start(self, channels: int) -> np.ndarray:
        """Return the state of no positions."""

    @abstractmethod
    def add(self, state: tf.Tensor, embeddings: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
        """Return the state after a window.

        Args:
            state: before.
            embeddings: (n, channels), at least one.
            window: its number in the slide, ().
        """

    @abstractmethod
    def merge(self, states: np.ndarray) -> np.ndarray:
        """Return the state of the positions of several states, (states, rows, channels)."""

    @abstractmethod
    def pooled(self, state: np.ndarray) -> np.ndarray:
        """Return the pooled embedding, (channels,) float64."""

    def windows_with_gradient(self, state: np.ndarray, gradient: np.ndarray) -> set[int] | None:
        """Return the windows with a gradient of their embeddings; None: all of them.

        Args:
            state: of the whole slide.
            gradient: of the loss with respect to the pooled embedding, (channels,).
        """
        return None

    @abstractmethod
    def surrogate(
        self, embeddings: tf.Tensor, window: tf.Tensor, state: tf.Tensor, gradient: tf.Tensor
    ) -> tf.Tensor:
        """Return a scalar with the gradient of the loss.

        Its gradient with respect to the embeddings of the window, and to the aggregator's
        variables, is the window's part of the gradient of the loss. The value has no meaning.

        Args:
            embeddings: (n, channels).
            window: its number in the slide, ().
            state: of the whole slide.
            gradient: of the loss with respect to the pooled embedding, (channels,).
        """


class Max(Aggregator):
    """The maximum of each channel; of equal values, the first window's first has the gradient."""

    rows = 3  # the value, its window, its position in the window

    def start(self, channels: int) -> np.ndarray:
        """Return the state of no positions."""
        return np.stack([np.full(channels, value, np.float64) for value in (-np.inf, -1, -1)])

    def add(self, state: tf.Tensor, embeddings: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
        """Return the state after a window."""
        values = tf.cast(tf.reduce_max(embeddings, axis=0), tf.float64)
        positions = tf.cast(tf.argmax(embeddings, axis=0), tf.float64)
        windows = tf.fill(tf.shape(values), tf.cast(window, tf.float64))
        # NaN counts as the largest, so that it reaches the loss. The order of the windows does not
        # matter.
        larger = ~(tf.math.is_nan(state[0]) | (values <= state[0]))
        first = (values == state[0]) & ((windows < state[1]) | (state[1] < 0))
        return tf.where(larger | first, tf.stack([values, windows, positions]), state)

    def merge(self, states: np.ndarray) -> np.ndarray:
        """Return the state of all positions."""
        values, windows, _ = states.transpose(1, 0, 2)
        largest = np.isnan(values) | (values == values.max(axis=0))
        first = np.where(largest & (windows >= 0), windows, np.inf).argmin(axis=0)
        return np.take_along_axis(states, first[None, None], axis=0)[0]

    def pooled(self, state: np.ndarray) -> np.ndarray:
        """Return the largest values."""
        return state[0]

    def windows_with_gradient(self, state: np.ndarray, gradient: np.ndarray) -> set[int] | None:
        """Return the windows with the largest value of a channel that has a gradient."""
        return {int(window) for window in state[1][gradient != 0]}

    def surrogate(
        self, embeddings: tf.Tensor, window: tf.Tensor, state: tf.Tensor, gradient: tf.Tensor
    ) -> tf.Tensor:
        """Return the sum of the largest values of this window, times their gradient."""
        here = state[1] == tf.cast(window, tf.float64)
        positions = tf.where(here, tf.cast(state[2], tf.int32), 0)
        channels = tf.range(tf.shape(embeddings)[1])
        values = tf.gather_nd(embeddings, tf.stack([positions, channels], axis=1))
        return tf.reduce_sum(tf.where(here, values * gradient, 0))


class Mean(Aggregator):
    """The mean of each channel."""

    rows = 2  # the sum, the number of positions

    def start(self, channels: int) -> np.ndarray:
        """Return the state of no positions."""
        return np.zeros((2, channels))

    def add(self, state: tf.Tensor, embeddings: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
        """Return the state after a window."""
        sums = tf.reduce_sum(tf.cast(embeddings, tf.float64), axis=0)
        counts = tf.fill(tf.shape(sums), tf.cast(tf.shape(embeddings)[0], tf.float64))
        return state + tf.stack([sums, counts])

    def merge(self, states: np.ndarray) -> np.ndarray:
        """Return the state of all positions."""
        return states.sum(axis=0)

    def pooled(self, state: np.ndarray) -> np.ndarray:
        """Return the means."""
        return state[0] / state[1]

    def surrogate(
        self, embeddings: tf.Tensor, window: tf.Tensor, state: tf.Tensor, gradient: tf.Tensor
    ) -> tf.Tensor:
        """Return the sum of the embeddings times their gradient."""
        return tf.reduce_sum(embeddings * (gradient / tf.cast(state[1], gradient.dtype)))


class Attention(Aggregator):
    """The mean weighted by attention: a softmax over all positions of a score of each.

    The softmax is computed window by window as by Milakov and Gimelshein 2018
    (https://arxiv.org/abs/1805.02867). With shares a, scores s and pooled embedding z, a gradient g
    with respect to z becomes a g with respect to an embedding h, and a g·(h - z) with respect to
    its score.
    """

    rows = 3  # the weighted sum, the sum of the weights, the largest score

    def __init__(self, scores: keras.Model) -> None:
        """Use a model from embeddings (n, rows, columns, channels) to (n, rows, columns, 1)."""
        self._scores = scores

    @property
    def variables(self) -> list[keras.Variable]:
        """The trainable variables."""
        return self._scores.trainable_variables

    def scores(self, embeddings: tf.Tensor) -> tf.Tensor:
        """Return the score of each position, (n,)."""
        return self._scores(embeddings[None, None], training=True)[0, 0, :, 0]

    def start(self, channels: int) -> np.ndarray:
        """Return the state of no positions."""
        return np.stack([np.full(channels, value, np.float64) for value in (0, 0, -np.inf)])

    def add(self, state: tf.Tensor, embeddings: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
        """Return the state after a window."""
        scores = tf.cast(self.scores(embeddings), tf.float64)
        largest = tf.maximum(state[2], tf.reduce_max(scores))
        weights = tf.exp(scores - largest[0])
        sums = tf.linalg.matvec(tf.cast(embeddings, tf.float64), weights, transpose_a=True)
        totals = tf.fill(tf.shape(sums), tf.reduce_sum(weights))
        before = tf.exp(state[2] - largest)
        return tf.stack([before * state[0] + sums, before * state[1] + totals, largest])

    def merge(self, states: np.ndarray) -> np.ndarray:
        """Return the state of all positions."""
        largest = states[:, 2].max(axis=0)
        shares = np.exp(states[:, 2] - largest)
        return np.stack([*(shares * states[:, :2].transpose(1, 0, 2)).sum(axis=1), largest])

    def pooled(self, state: np.ndarray) -> np.ndarray:
        """Return the weighted means."""
        return state[0] / state[1]

    def surrogate(
        self, embeddings: tf.Tensor, window: tf.Tensor, state: tf.Tensor, gradient: tf.Tensor
    ) -> tf.Tensor:
        """Return the sum of embeddings and scores times their gradients."""
        scores = self.scores(embeddings)
        shares = tf.exp(tf.cast(scores, tf.float64) - state[2, 0]) / state[1, 0]
        shares = tf.stop_gradient(tf.cast(shares, embeddings.dtype))
        pooled = tf.cast(state[0] / state[1], embeddings.dtype)
        away = tf.linalg.matvec(tf.stop_gradient(embeddings) - pooled, gradient)
        return tf.reduce_sum(shares * (tf.linalg.matvec(embeddings, gradient) + away * scores))
