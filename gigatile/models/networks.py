"""What the builders of all architectures share."""

from dataclasses import dataclass

import keras

from gigatile.settings.train import TrainSettings


@dataclass(frozen=True)
class Networks:
    """Two models that share their weights.

    Attributes:
        model: from inputs to scores. It is saved and used for prediction.
        trained: from inputs to the outputs that the losses take, for example logits.
    """

    model: keras.Model
    trained: keras.Model


def configure_keras(settings: TrainSettings) -> None:
    """Set the precision of layers that are created next, and the seed of their weights."""
    keras.mixed_precision.set_dtype_policy(
        "mixed_float16" if settings.mixed_precision else "float32"
    )
    keras.utils.set_random_seed(settings.seed)
