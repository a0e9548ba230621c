"""ResNet-18 (He et al. 2016, https://doi.org/10.1109/CVPR.2016.90, table 1)."""

import keras

from gigatile.settings.train import TrainSettings


def build(tiles: keras.KerasTensor, settings: TrainSettings) -> keras.KerasTensor:
    """Return features (n, 512) of tiles (n, side, side, 3) with values 0-255."""
    x = keras.layers.Rescaling(1 / 127.5, offset=-1)(tiles)
    x = keras.layers.ReLU()(_convolution(x, 64, 7, 2))
    x = keras.layers.MaxPooling2D(3, strides=2, padding="same")(x)
    for stage, filters in enumerate((64, 128, 256, 512)):
        for block in range(2):
            x = _block(x, filters, 2 if stage and not block else 1)
    return keras.layers.GlobalAveragePooling2D()(x)


def _block(x: keras.KerasTensor, filters: int, strides: int) -> keras.KerasTensor:
    """Return two convolutions with a shortcut, which is projected where the shape changes."""
    shortcut = x if x.shape[-1] == filters else _convolution(x, filters, 1, strides)
    y = keras.layers.ReLU()(_convolution(x, filters, 3, strides))
    return keras.layers.ReLU()(keras.layers.Add()([_convolution(y, filters, 3, 1), shortcut]))


def _convolution(x: keras.KerasTensor, filters: int, size: int, strides: int) -> keras.KerasTensor:
    x = keras.layers.Conv2D(
        filters,
        size,
        strides=strides,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
    )(x)
    return keras.layers.BatchNormalization(epsilon=1e-5)(x)
