"""The task of segmenting volumes: regions, or labels, of each voxel."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import tensorflow as tf

from gigatile.errors import UserError
from gigatile.records.shards import ShardReader
from gigatile.settings.patches import PatchSettings
from gigatile.settings.train import TrainSettings
from gigatile.settings.volumes import VolumeSettings
from gigatile.training.order import Sampling, window_of
from gigatile.training.task import Networks
from gigatile.training.unet import build_unet
from gigatile.training.volumes import Patches
from gigatile.volumes.targets import Targets

# Keeps the Dice of a region that is hardly there from being decided by a few voxels.
SMOOTH = 1.0


class Segmentation:
    """Patches, a label for each voxel: Dice and cross-entropy; see `task.Task`.

    The loss of a patch is its cross-entropy and one less its soft Dice, each the mean over what is
    told apart, and of that the mean over the outputs of the network's levels, each with half the
    weight of the one before (Isensee et al. 2021, https://doi.org/10.1038/s41592-020-01008-z). It
    is of one patch alone, so that batches divided in another way give the same gradients.
    """

    samples, measure = "patches", "dice"

    def __init__(self, volumes: VolumeSettings, patches: PatchSettings) -> None:
        self._volumes, self._patches = volumes, patches
        self._targets = Targets(volumes, patches)

    def source(self, reader: ShardReader) -> Patches:
        """Return patches of the cases."""
        return Patches(reader, self._patches, self._volumes.modalities)

    def sampling(self, reader: ShardReader, settings: TrainSettings) -> Sampling:
        """Return what decides the order of the patches: each case counts a few times."""
        if not len(reader):
            raise UserError("no case to train on")
        return Sampling(
            counts=reader.counts,
            seed=settings.seed,
            window=window_of(settings.shuffle_mb, reader.bytes, len(reader.counts)),
            boost=(Fraction(self._patches.per_case),),
        )

    def networks(self, reader: ShardReader, settings: TrainSettings, pretrained: bool) -> Networks:
        """Return a U-Net for the patches."""
        channels = len(self._volumes.modalities)
        outputs, activation = self._targets.outputs, self._targets.activation
        return build_unet(settings, self._patches.size, channels, outputs, activation)

    def sums(
        self, found: Any, labels: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the weighted sums of loss and of Dice over patches.

        Args:
            found: a list of (n, x, y, z, outputs) logits, from the finest to the coarsest.
            labels: (n, x, y, z) uint8, values as in the segmentations.
            weights: (n,) float32.
        """
        if not isinstance(found, list):
            found = [found]  # as Keras gives it where there is one level alone
        truth = tf.gather(tf.constant(self._targets.table), tf.cast(labels, tf.int32))
        shares = np.array([0.5**level for level in range(len(found))])
        losses = tf.zeros_like(weights)
        for share, logits in zip(shares / shares.sum(), found, strict=True):
            losses += float(share) * self._losses(logits, _nearest(truth, logits.shape[1:4]))
        measured = self._measured(found[0], truth)
        return tf.reduce_sum(losses * weights), tf.reduce_sum(measured * weights)

    def _losses(self, logits: tf.Tensor, truth: tf.Tensor) -> tf.Tensor:
        """Return the loss of each patch at one resolution: (n,) float32."""
        if self._targets.activation == "softmax":
            entropy = tf.nn.softmax_cross_entropy_with_logits(truth, logits)
            scores = tf.nn.softmax(logits)[..., 1:]
        else:
            entropy = tf.nn.sigmoid_cross_entropy_with_logits(truth, logits)
            scores = tf.sigmoid(logits)
        return _per_patch(entropy) + 1 - _dice(scores, self._without_background(truth), SMOOTH)

    def _measured(self, logits: tf.Tensor, truth: tf.Tensor) -> tf.Tensor:
        """Return the Dice of each patch's segmentation: (n,) float32; 1 where both have nothing."""
        if self._targets.activation == "softmax":
            decided = tf.one_hot(tf.argmax(logits, axis=-1), self._targets.outputs)[..., 1:]
        else:
            decided = tf.cast(logits > 0, tf.float32)
        return _dice(decided, self._without_background(truth), 1e-6)

    def _without_background(self, values: tf.Tensor) -> tf.Tensor:
        return values[..., -len(self._targets.names) :]

    def told(self, reader: ShardReader) -> str:
        """Say how many cases there are, and how much is told apart."""
        return f"{len(reader)} cases, {len(self._targets.names)} {self._patches.targets}"

    def settings(self) -> Mapping[str, Any]:
        """Return what the outputs stand for, how cases were prepared, and what of them was shown.

        With the outputs in their order, since equal settings may have regions in another one.
        """
        return {
            "outputs": self._targets.names,
            "volumes": self._volumes.model_dump(exclude={"stall_minutes"}),
            "patches": self._patches.model_dump(),
        }

    def described(self, reader: ShardReader) -> Mapping[str, Any]:
        """Return nothing more: all follows from the settings."""
        return {}


def _per_patch(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.reshape(values, (tf.shape(values)[0], -1)), axis=1)


def _nearest(truth: tf.Tensor, shape: tuple[int, int, int]) -> tf.Tensor:
    """Return every so many voxels of (n, x, y, z, outputs), so that its sides are `shape`."""
    x, y, z = (whole // part for whole, part in zip(truth.shape[1:4], shape, strict=True))
    return truth[:, ::x, ::y, ::z]


def _dice(scores: tf.Tensor, truth: tf.Tensor, smooth: float) -> tf.Tensor:
    """Return the mean Dice over what is told apart: (n,) float32.

    Args:
        scores, truth: (n, x, y, z, regions or labels).
        smooth: is added above and below the line.
    """
    both = tf.reduce_sum(scores * truth, axis=(1, 2, 3))
    sizes = tf.reduce_sum(scores, axis=(1, 2, 3)) + tf.reduce_sum(truth, axis=(1, 2, 3))
    return tf.reduce_mean((2 * both + smooth) / (sizes + smooth), axis=1)
