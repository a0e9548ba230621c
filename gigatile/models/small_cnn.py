"""A small convolutional network that learns the texture of tiles on two cores."""

import keras

from gigatile.settings.train import TrainSettings


def build(tiles: keras.KerasTensor, settings: TrainSettings) -> keras.KerasTensor:
    """Return features (n, 128) of tiles (n, side, side, 3) with values 0-255.

    It uses group normalisation, as batches on a laptop are small.
    """
    x = keras.layers.Rescaling(1 / 127.5, offset=-1)(tiles)
    x = keras.layers.Conv2D(16, 7, strides=2, padding="same", use_bias=False)(x)
    x = keras.layers.GroupNormalization(8)(x)
    x = keras.layers.ReLU()(x)
    for filters in (32, 64, 128):
        x = keras.layers.MaxPooling2D(2)(x)
        x = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = keras.layers.GroupNormalization(8)(x)
        x = keras.layers.ReLU()(x)
    return keras.layers.GlobalAveragePooling2D()(x)
