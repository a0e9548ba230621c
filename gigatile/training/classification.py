"""The loss and the metric of every classifier: cross-entropy and accuracy."""

import tensorflow as tf


def classification_sums(
    logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Return the weighted sums of cross-entropy (`loss`) and of correct predictions (`accuracy`).

    Args:
        logits: (n, classes).
        targets: (n,) int32, indices of the classes.
        weights: (n,) float32.
    """
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    predicted = tf.argmax(logits, axis=1, output_type=tf.int32)
    correct = tf.cast(predicted == targets, weights.dtype)
    return {
        "loss": tf.reduce_sum(losses * weights),
        "accuracy": tf.reduce_sum(correct * weights),
    }
