"""The losses and the metric of classifiers."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from gigatile.settings.train import TrainSettings


def cross_entropy(settings: TrainSettings, targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return the cross-entropy with smoothed labels.

    Szegedy et al. 2016, https://arxiv.org/abs/1512.00567, section 7.
    """
    classes, smoothing = logits.shape[-1], settings.label_smoothing
    labels = tf.one_hot(targets, classes, 1 - smoothing + smoothing / classes, smoothing / classes)
    return tf.nn.softmax_cross_entropy_with_logits(labels, logits)


def focal(settings: TrainSettings, targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return the focal loss."""
    entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    return focused(entropy, settings.focal_gamma)


def focused(entropy: tf.Tensor, gamma: float) -> tf.Tensor:
    """Return (1 - p)^gamma times a cross-entropy -log p, of any shape.

    Lin et al. 2017, https://arxiv.org/abs/1708.02002, equation 4.
    """
    # Its gradient would not be finite at p = 1 with a gamma below 1.
    return tf.pow(tf.maximum(-tf.math.expm1(-entropy), 1e-12), gamma) * entropy


Loss = Callable[[TrainSettings, tf.Tensor, tf.Tensor], tf.Tensor]
# By the name that `train.loss` has: from targets (n,) int32 and logits (n, classes) to (n,).
LOSSES: Mapping[str, Loss] = {"cross_entropy": cross_entropy, "focal": focal}


class ClassificationSums:
    """Computes the sums of a batch; see `TrainingTask.sums`."""

    def __init__(self, settings: TrainSettings, class_weights: Sequence[float] = ()) -> None:
        """Take the loss from the settings.

        Args:
            settings: name and parameters of the loss.
            class_weights: of each class in the loss; empty: 1.
        """
        self._settings = settings
        self._loss = LOSSES[settings.loss or "cross_entropy"]
        self._class_weights = np.array(class_weights, np.float32)

    def __call__(
        self, logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Return the weighted sums of `loss`, and of correct predictions (`accuracy`).

        Args:
            logits: (n, classes).
            targets: (n,) int32, indices of the classes.
            weights: (n,) float32; `accuracy` is the same for all class weights.
        """
        losses = self._loss(self._settings, targets, logits)
        if self._class_weights.size:
            losses *= tf.gather(tf.constant(self._class_weights), targets)
        predicted = tf.argmax(logits, axis=1, output_type=tf.int32)
        correct = tf.cast(predicted == targets, weights.dtype)
        return {
            "loss": tf.reduce_sum(losses * weights),
            "accuracy": tf.reduce_sum(correct * weights),
        }
