"""Training of volume segmentation: Dice and cross-entropy of regions or labels of each voxel."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import tensorflow as tf

from gigatile.errors import UserError
from gigatile.models import load_builder
from gigatile.models.networks import Networks
from gigatile.records.shards import ShardReader
from gigatile.settings.patches import PatchSettings
from gigatile.settings.section import check_section
from gigatile.settings.train import TrainSettings
from gigatile.settings.volumes import VolumeSettings
from gigatile.tasks.volume_segmentation.boundary import boundary_loss
from gigatile.tasks.volume_segmentation.loss_names import BOUNDARY, DICE, DICE_FOCAL
from gigatile.tasks.volume_segmentation.samples import Patches
from gigatile.training.losses import focused
from gigatile.training.sample_order import Sampling, window_size
from gigatile.training.task import TrainingTask
from gigatile.volumes.targets import Targets

# Added to numerator and denominator of the Dice, which would otherwise depend on a few voxels if a
# region is almost absent.
SMOOTH = 1.0


def training_task(settings: Mapping[str, Any]) -> TrainingTask:
    """Return the task for its settings, as `Task.training` returns them."""
    return VolumeSegmentation(
        check_section(VolumeSettings, settings["volumes"], "volumes"),
        check_section(PatchSettings, settings["patches"], "patches"),
    )


class VolumeSegmentation(TrainingTask):
    """Patches with a label for each voxel; see `TrainingTask`.

    The loss of a patch is the mean cross-entropy, or focal loss, plus one minus the mean soft Dice
    of the targets, or their boundary loss. It is averaged over the outputs of all levels, where
    each level has half the weight of the next finer one (Isensee et al. 2021,
    https://doi.org/10.1038/s41592-020-01008-z). The loss of a patch does not depend on other
    patches, so the gradient does not depend on how a batch is divided.
    """

    name, samples, metrics = "volume_segmentation", "patches", ("dice",)

    def __init__(self, volumes: VolumeSettings, patches: PatchSettings) -> None:
        self._volumes, self._patches = volumes, patches
        self._targets = Targets(volumes, patches)
        self._loss, self._focal_gamma = DICE, 0.0

    def source(self, reader: ShardReader, augmented: bool = True) -> Patches:
        """Return the reader of patches."""
        patches = self._patches if augmented else self._patches.without_augmentation()
        return Patches(reader, patches, self._volumes.modalities)

    def sampling(self, reader: ShardReader, settings: TrainSettings) -> Sampling:
        """Return what the order of the patches depends on: `per_case` patches of each case."""
        if not len(reader):
            raise UserError("no case to train on")
        return Sampling(
            counts=reader.counts,
            seed=settings.seed,
            window=window_size(settings.shuffle_mb, reader.bytes, len(reader.counts)),
            boost=(Fraction(self._patches.per_case),),
        )

    def configure(self, reader: ShardReader, settings: TrainSettings) -> None:
        """Take the loss."""
        self._loss, self._focal_gamma = settings.loss or DICE, settings.focal_gamma

    def networks(self, reader: ShardReader, settings: TrainSettings, pretrained: bool) -> Networks:
        """Build a U-Net for patches."""
        channels = len(self._volumes.modalities)
        outputs, activation = self._targets.outputs, self._targets.activation
        build = load_builder(settings.model)
        return build(settings, self._patches.size, channels, outputs, activation)

    def sums(self, outputs: Any, targets: tf.Tensor, weights: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the weighted sums of loss and Dice of the patches.

        Args:
            outputs: list of (n, x, y, z, outputs) logits, from the finest level to the coarsest.
            targets: (n, x, y, z) uint8, label values.
            weights: (n,) float32.
        """
        if not isinstance(outputs, list):
            outputs = [outputs]  # Keras returns a list of one tensor as the tensor
        reference = tf.gather(tf.constant(self._targets.table), tf.cast(targets, tf.int32))
        shares = np.array([0.5**level for level in range(len(outputs))])
        losses = tf.zeros_like(weights)
        for share, logits in zip(shares / shares.sum(), outputs, strict=True):
            downsampled = _downsample(reference, logits.shape[1:4])
            losses += float(share) * self._losses(logits, downsampled)
        dice = self._predicted_dice(outputs[0], reference)
        return {"loss": tf.reduce_sum(losses * weights), "dice": tf.reduce_sum(dice * weights)}

    def _losses(self, logits: tf.Tensor, reference: tf.Tensor) -> tf.Tensor:
        """Return the loss of each patch at one level: (n,) float32."""
        if self._targets.activation == "softmax":
            entropy = tf.nn.softmax_cross_entropy_with_logits(reference, logits)
            scores = tf.nn.softmax(logits)[..., 1:]
        else:
            entropy = tf.nn.sigmoid_cross_entropy_with_logits(reference, logits)
            scores = tf.sigmoid(logits)
        if self._loss == DICE_FOCAL:
            entropy = focused(entropy, self._focal_gamma)
        truth = self._without_background(reference)
        if self._loss == BOUNDARY:
            return _patch_means(entropy) + boundary_loss(scores, truth, SMOOTH)
        return _patch_means(entropy) + 1 - _dice(scores, truth, SMOOTH)

    def _predicted_dice(self, logits: tf.Tensor, reference: tf.Tensor) -> tf.Tensor:
        """Return the Dice of the predicted segmentation of each patch, 1 if both are empty."""
        if self._targets.activation == "softmax":
            predicted = tf.one_hot(tf.argmax(logits, axis=-1), self._targets.outputs)[..., 1:]
        else:
            predicted = tf.cast(logits > 0, tf.float32)
        return _dice(predicted, self._without_background(reference), 1e-6)

    def _without_background(self, values: tf.Tensor) -> tf.Tensor:
        return values[..., -len(self._targets.names) :]

    def describe_data(self, reader: ShardReader) -> str:
        """Return the number of cases and of targets."""
        return f"{len(reader)} cases, {len(self._targets.names)} {self._patches.targets}"

    def settings(self) -> Mapping[str, Any]:
        """Return the meaning of the outputs, how cases were prepared, and how patches are sampled.

        `outputs` has the order of the outputs, which the settings of the regions do not define.
        """
        return {
            "outputs": self._targets.names,
            "volumes": self._volumes.model_dump(exclude={"stall_minutes"}),
            "patches": self._patches.model_dump(),
        }


def _patch_means(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.reshape(values, (tf.shape(values)[0], -1)), axis=1)


def _downsample(reference: tf.Tensor, shape: tuple[int, int, int]) -> tf.Tensor:
    """Return every nth voxel of (n, x, y, z, outputs), so that x, y and z are those of `shape`."""
    x, y, z = (full // part for full, part in zip(reference.shape[1:4], shape, strict=True))
    return reference[:, ::x, ::y, ::z]


def _dice(scores: tf.Tensor, reference: tf.Tensor, smooth: float) -> tf.Tensor:
    """Return the mean Dice over the targets: (n,) float32.

    Args:
        scores, reference: (n, x, y, z, targets).
        smooth: added to numerator and denominator.
    """
    both = tf.reduce_sum(scores * reference, axis=(1, 2, 3))
    sizes = tf.reduce_sum(scores, axis=(1, 2, 3)) + tf.reduce_sum(reference, axis=(1, 2, 3))
    return tf.reduce_mean((2 * both + smooth) / (sizes + smooth), axis=1)
