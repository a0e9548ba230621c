"""Mixup: each sample becomes a weighted mean of itself and its neighbour in the batch.

Zhang et al. 2018, https://arxiv.org/abs/1710.09412: the loss is the mean of the losses for both
labels, with the same weights. Samples 0 and 1 of a batch are neighbours, 2 and 3, and so on, so
that nothing else has to be read, and the ranks need not exchange samples.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from scipy.special import betaincinv

from gigatile.records.shuffle import key64, random64, uniform_of

# From the seed of a sample to random numbers that nothing else uses.
_KEY = key64("mixup")


class MixedLabels(NamedTuple):
    """The labels of mixed samples.

    Attributes:
        labels: (n,) int32, of the sample itself.
        others: (n,) int32, of its neighbour.
        shares: (n,) float32, the weight of the sample itself.
    """

    labels: tf.Tensor
    others: tf.Tensor
    shares: tf.Tensor


def shares_of(seeds: np.ndarray, alpha: float) -> np.ndarray:
    """Return the weight of each sample in its mixture, from Beta(alpha, alpha): (n,) float32.

    Args:
        seeds: (n,) uint64 of the samples.
        alpha: above 0.
    """
    return betaincinv(alpha, alpha, uniform_of(random64(_KEY, seeds))).astype(np.float32)


def mix(
    images: tf.Tensor, targets: Mapping[str, tf.Tensor], weights: tf.Tensor
) -> tuple[tf.Tensor, MixedLabels]:
    """Mix the images of a batch.

    Args:
        images: (n, height, width, channels) of any type; n is even.
        targets: `labels`, (n,) int32, and `shares`, (n,) float32.
        weights: (n,) float32; a sample whose neighbour has 0, as it is padding, stays as it is.

    Returns:
        The images, float32, and their labels.
    """
    neighbours = tf.bitwise.bitwise_xor(tf.range(tf.shape(weights)[0]), 1)
    counts = tf.gather(weights, neighbours) > 0
    shares = tf.where(counts, targets["shares"], tf.ones_like(targets["shares"]))
    own = tf.reshape(shares, (-1, 1, 1, 1))
    images = tf.cast(images, tf.float32)
    mixed = own * images + (1 - own) * tf.gather(images, neighbours)
    labels = targets["labels"]
    return mixed, MixedLabels(labels, tf.gather(labels, neighbours), shares)
