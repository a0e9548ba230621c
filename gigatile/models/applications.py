"""Further networks of Keras Applications as encoders of tiles."""

from collections.abc import Callable
from dataclasses import dataclass

import keras

from gigatile.models.pretrained import load_backbone, without_dropout
from gigatile.settings.train import TrainSettings

# Mean and standard deviation of ImageNet's pixels, 0-1: `torch` preprocessing.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Application:
    """A network of Keras Applications.

    Attributes:
        build: its function in `keras.applications`.
        title: its name.
        scaled: whether it scales its input, 0-255, itself.
    """

    build: Callable[..., keras.Model]
    title: str
    scaled: bool = True


APPLICATIONS = {
    "densenet121": Application(keras.applications.DenseNet121, "DenseNet-121", scaled=False),
    "efficientnetv2_b0": Application(keras.applications.EfficientNetV2B0, "EfficientNetV2-B0"),
    "efficientnetv2_s": Application(keras.applications.EfficientNetV2S, "EfficientNetV2-S"),
    "convnext_tiny": Application(keras.applications.ConvNeXtTiny, "ConvNeXt-Tiny"),
}


def build(tiles: keras.KerasTensor, settings: TrainSettings) -> keras.KerasTensor:
    """Return features (n, channels) of tiles (n, side, side, 3) with values 0-255.

    Dropout and stochastic depth are left out.

    Raises:
        UserError: `settings.weights` cannot be loaded.
    """
    application = APPLICATIONS[settings.model]
    network = without_dropout(
        load_backbone(
            application.build,
            application.title,
            settings.weights,
            tuple(tiles.shape[1:]),
            pooling="avg",
        )
    )
    if not application.scaled:
        tiles = keras.layers.Rescaling(
            [1 / (255 * value) for value in DEVIATION],
            offset=[-mean / value for mean, value in zip(MEAN, DEVIATION, strict=True)],
        )(tiles)
    return network(tiles)
