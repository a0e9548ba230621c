"""The optimizer of a training, with clipping of gradients and weight decay."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from gigatile.settings.train import TrainSettings


class Optimizer:
    """Updates weights with gradients that are already summed over the ranks.

    Attributes:
        variables: its state, which a checkpoint contains.
    """

    def __init__(self, settings: TrainSettings, weights: Sequence[keras.Variable]) -> None:
        """Create the optimizer for trainable weights."""
        self._weights, self._clip_norm = list(weights), settings.clip_norm
        # Norms and biases are vectors; as in most recipes, they do not decay.
        kernels = [len(weight.shape) > 1 for weight in weights]
        self._decay = [0.0] * len(kernels)
        inner: keras.optimizers.Optimizer
        if settings.optimizer == "sgd":
            inner = keras.optimizers.SGD(settings.learning_rate, momentum=settings.momentum)
            # L2, as PyTorch's SGD has it; the decay of Keras is not multiplied by the momentum.
            self._decay = [settings.weight_decay * kernel for kernel in kernels]
        else:
            # Decoupled: Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101.
            decay = settings.weight_decay or None
            inner = keras.optimizers.Adam(settings.learning_rate, weight_decay=decay)
            if decay is not None:
                vectors = [w for w, kernel in zip(weights, kernels, strict=True) if not kernel]
                inner.exclude_from_weight_decay(var_list=vectors)
        self._inner = inner
        self._scaled = settings.mixed_precision
        self._optimizer = keras.optimizers.LossScaleOptimizer(inner) if self._scaled else inner
        self._optimizer.build(self._weights)
        self.variables = self._optimizer.variables

    @property
    def iterations(self) -> tf.Tensor:
        """The number of complete steps, int64."""
        return self._optimizer.iterations

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate of the next step."""
        self._inner.learning_rate.assign(rate)

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """Return a loss multiplied by the loss scale of mixed precision."""
        return self._optimizer.scale_loss(loss)

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """Clip the gradients of scaled losses, and update the weights.

        With mixed precision, a step whose gradients are not finite is skipped.
        """
        scale = tf.cast(self._optimizer.dynamic_scale, tf.float32) if self._scaled else 1.0
        if self._clip_norm is not None:
            # Pascanu et al. 2013, https://arxiv.org/abs/1211.5063, section 3.2. A norm that is not
            # finite makes all gradients NaN.
            norm = tf.linalg.global_norm(list(gradients))
            factor = tf.minimum(1.0, self._clip_norm * scale / norm)
            factor = tf.where(tf.math.is_finite(norm), factor, norm * 0)
            gradients = [gradient * tf.cast(factor, gradient.dtype) for gradient in gradients]
        if any(self._decay):
            gradients = [
                gradient + tf.cast(scale * decay, gradient.dtype) * weight.value
                for gradient, weight, decay in zip(
                    gradients, self._weights, self._decay, strict=True
                )
            ]
        self._optimizer.apply(gradients, self._weights)
