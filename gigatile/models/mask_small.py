"""A small backbone for Mask R-CNN that learns on two cores."""

import keras

from gigatile.models.mask_rcnn import Backbone
from gigatile.settings.train import TrainSettings

# Channels of the stages with strides 2, 4, 8, 16 and 32.
WIDTHS = (16, 32, 64, 96, 128)


def build(images: keras.KerasTensor, settings: TrainSettings, frozen: int) -> Backbone:
    """Return the backbone; see `Backbone`. It uses group normalisation."""
    x = keras.layers.Rescaling(1 / 127.5, offset=-1)(images)
    x = _block(x, WIDTHS[0], 2, frozen > 0)
    levels = []
    for stage, width in enumerate(WIDTHS[1:], 1):
        x = _block(x, width, 2, frozen > stage)
        shortcut = x
        x = _block(x, width, 1, frozen > stage)
        x = keras.layers.Add()([x, shortcut])
        levels.append(x)
    return Backbone(levels, channels=64, hidden=256, convolutions=2)


def _block(x: keras.KerasTensor, width: int, stride: int, frozen: bool) -> keras.KerasTensor:
    for layer in (
        keras.layers.Conv2D(width, 3, strides=stride, padding="same", use_bias=False),
        keras.layers.GroupNormalization(8),
    ):
        layer.trainable = not frozen
        x = layer(x)
    return keras.layers.ReLU()(x)
