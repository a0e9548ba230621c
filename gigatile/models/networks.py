"""What the builders of all architectures share."""

from collections.abc import Sequence
from dataclasses import dataclass

import keras

from gigatile.settings.train import TrainSettings


@dataclass(frozen=True)
class Networks:
    """Two models that share their weights.

    Attributes:
        model: from inputs to scores. It is saved and used for prediction.
        trained: from inputs to the outputs that the losses take, for example logits.
        backbone: the layers that `backbone_rate` and `freeze_epochs` apply to.
        outputs: the last layers, which depend on the classes or labels.
    """

    model: keras.Model
    trained: keras.Model
    backbone: Sequence[keras.Layer] = ()
    outputs: Sequence[keras.Layer] = ()


def configure_keras(settings: TrainSettings) -> None:
    """Set the precision of layers that are created next, and the seed of their weights."""
    half = settings.mixed_precision
    keras.mixed_precision.set_dtype_policy("float32" if half == "off" else f"mixed_{half}")
    keras.utils.set_random_seed(settings.seed)
