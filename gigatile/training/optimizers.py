"""The optimizer of a training, with clipping of gradients and weight decay."""

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import keras
import tensorflow as tf

from gigatile.settings.train import TrainSettings


def _decays(weight: Any) -> bool:
    """Return whether a weight is a kernel.

    Norms and biases are vectors; as in most recipes, they do not decay.
    """
    return len(weight.shape) > 1


class Lamb(keras.optimizers.Lamb):
    """LAMB as published (You et al. 2020, https://arxiv.org/abs/1904.00962, algorithm 2).

    The decay of Keras' class has no part in the norm of the update. Weights that do not decay are
    updated as by Adam, as in the implementation of the authors.
    """

    def __init__(self, learning_rate: float, decay: float) -> None:
        super().__init__(learning_rate, epsilon=1e-6)
        self._decay = decay

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a weight and its moments."""
        index = self._get_variable_index(variable)
        step = tf.cast(self.iterations + 1, tf.float32)
        rate, gradient = tf.cast(learning_rate, variable.dtype), tf.cast(gradient, variable.dtype)
        corrected = []
        for moment, value, beta in (
            (self._momentums[index], gradient, self.beta_1),
            (self._velocities[index], tf.square(gradient), self.beta_2),
        ):
            moment.assign(beta * moment + (1 - beta) * value)
            corrected.append(moment / tf.cast(1 - beta**step, variable.dtype))
        update = corrected[0] / (tf.sqrt(corrected[1]) + self.epsilon)
        if _decays(variable):
            update += self._decay * variable
            norms = tf.norm(variable), tf.norm(update)
            update *= tf.where(tf.minimum(*norms) > 0, norms[0] / norms[1], 1.0)
        variable.assign(variable - rate * update)


class Optimizer:
    """Updates weights with gradients that are already summed over the ranks.

    Attributes:
        variables: its state, which a checkpoint contains.
    """

    def __init__(
        self,
        settings: TrainSettings,
        weights: Sequence[keras.Variable],
        backbone: Collection[str] = (),
    ) -> None:
        """Create the optimizer for trainable weights.

        Args:
            settings: of the optimizer.
            weights: all trainable weights.
            backbone: the paths of the weights of the backbone.
        """
        self._weights, self._clip_norm = list(weights), settings.clip_norm
        slower = settings.freeze_epochs > 0 or settings.backbone_rate != 1
        self._is_slower = [slower and weight.path in backbone for weight in weights]
        self._backbone_factor = tf.Variable(1.0, trainable=False)
        self._decay = [0.0] * len(self._weights)
        inner: keras.optimizers.Optimizer
        if settings.optimizer == "sgd":
            inner = keras.optimizers.SGD(
                settings.learning_rate, momentum=settings.momentum, nesterov=settings.nesterov
            )
            # L2, as PyTorch's SGD has it; the decay of Keras is not multiplied by the momentum.
            self._decay = [settings.weight_decay * _decays(weight) for weight in weights]
        elif settings.optimizer == "lamb":
            inner = Lamb(settings.learning_rate, settings.weight_decay)
        else:
            # Decoupled: Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101.
            decay = settings.weight_decay or None
            inner = keras.optimizers.Adam(settings.learning_rate, weight_decay=decay)
            if decay is not None:
                vectors = [weight for weight in weights if not _decays(weight)]
                inner.exclude_from_weight_decay(var_list=vectors)
        self._inner = inner
        self._scaled = settings.mixed_precision == "float16"
        self._optimizer = keras.optimizers.LossScaleOptimizer(inner) if self._scaled else inner
        self._optimizer.build(self._weights)
        self.variables = self._optimizer.variables

    @property
    def iterations(self) -> tf.Tensor:
        """The number of complete steps, int64."""
        return self._optimizer.iterations

    def set_learning_rate(self, rate: float, of_backbone: float = 1) -> None:
        """Set the learning rate of the next step, and its factor for the backbone.

        With a factor of 0, the backbone stays as it is. Its moments are updated all the same: a
        moment that starts from zero late would make the first steps too large.
        """
        self._inner.learning_rate.assign(rate)
        self._backbone_factor.assign(of_backbone)

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """Return a loss multiplied by the loss scale of float16."""
        return self._optimizer.scale_loss(loss)

    def apply(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """Clip the gradients of scaled losses, and update the weights.

        With float16, a step with infinite gradients is skipped.

        Returns:
            The norm before clipping; see `_norm`.
        """
        scale = tf.cast(self._optimizer.dynamic_scale, tf.float32) if self._scaled else 1.0
        norm = self._norm(gradients)
        if self._clip_norm is not None:
            # Pascanu et al. 2013, https://arxiv.org/abs/1211.5063, section 3.2. A norm that is not
            # finite makes all gradients NaN.
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
        norm = tf.cast(norm, tf.float32) / scale  # before the scale is adapted
        slower = list(itertools.compress(self._weights, self._is_slower))
        before = [tf.identity(weight.value) for weight in slower]
        with tf.control_dependencies(before):
            self._optimizer.apply(gradients, self._weights)
        for weight, value in zip(slower, before, strict=True):
            factor = tf.cast(self._backbone_factor, value.dtype)
            weight.assign(value + factor * (weight.value - value))
        return norm

    def _norm(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the norm of the gradient of all weights together that are not frozen."""
        is_trained = self._backbone_factor > 0
        return tf.linalg.global_norm(
            [
                gradient * tf.cast(is_trained, gradient.dtype) if is_slower else gradient
                for gradient, is_slower in zip(gradients, self._is_slower, strict=True)
            ]
        )
