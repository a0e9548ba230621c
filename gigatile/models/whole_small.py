"""A small convolutional encoder of whole slides, which learns on two cores."""

import keras

from gigatile.settings.train import TrainSettings


def build(slides: keras.KerasTensor, settings: TrainSettings) -> keras.KerasTensor:
    """Return embeddings (n, rows, columns, 128) of slides (n, height, width, 3), values 0-255.

    An embedding covers 32 pixels. The normalisation is over the channels of one position (Zhang and
    Sennrich 2019, https://arxiv.org/abs/1910.07467).
    """
    x = keras.layers.Rescaling(1 / 127.5, offset=-1)(slides)
    for filters, kernel, stride in ((32, 7, 4), (64, 3, 2), (96, 3, 2), (128, 3, 2)):
        x = keras.layers.Conv2D(filters, kernel, strides=stride, padding="same", use_bias=False)(x)
        x = keras.layers.RMSNormalization()(x)
        x = keras.layers.ReLU()(x)
    return x
