"""ResNet-50 with group normalisation as the backbone of Mask R-CNN.

Wu and He 2018, https://arxiv.org/abs/1803.08494. It does not depend on the batch size, and can be
trained from random weights (He et al. 2019, https://arxiv.org/abs/1811.08883).
"""

import keras
from keras import layers

from gigatile.models.mask_rcnn import Backbone
from gigatile.settings.train import TrainSettings

GROUPS = 32
# Number of blocks and of channels of the stages with strides 4, 8, 16 and 32.
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))


def build(images: keras.KerasTensor, settings: TrainSettings, frozen: int) -> Backbone:
    """Return the backbone; see `Backbone`."""
    x = layers.Rescaling(1 / 58.0, offset=[-2.1, -2.0, -1.8])(images)
    x = _convolved(x, 64, 7, 2, frozen > 0)
    x = layers.MaxPooling2D(3, strides=2, padding="same")(layers.ReLU()(x))
    levels = []
    for stage, (blocks, width) in enumerate(STAGES, 1):
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 1 else 1
            x = _bottleneck(x, width, stride, frozen > stage, first=block == 0)
        levels.append(x)
    return Backbone(
        levels,
        channels=256,
        hidden=1024,
        convolutions=4,
        normalise=lambda: layers.GroupNormalization(GROUPS),
    )


def _bottleneck(
    x: keras.KerasTensor, width: int, stride: int, frozen: bool, first: bool
) -> keras.KerasTensor:
    shortcut = _convolved(x, 4 * width, 1, stride, frozen) if first else x
    x = layers.ReLU()(_convolved(x, width, 1, 1, frozen))
    x = layers.ReLU()(_convolved(x, width, 3, stride, frozen))
    x = _convolved(x, 4 * width, 1, 1, frozen)
    return layers.ReLU()(layers.Add()([x, shortcut]))


def _convolved(
    x: keras.KerasTensor, width: int, size: int, stride: int, frozen: bool
) -> keras.KerasTensor:
    """Return a convolution with group normalisation."""
    for layer in (
        layers.Conv2D(
            width,
            size,
            strides=stride,
            padding="same",
            use_bias=False,
            kernel_initializer="he_normal",
        ),
        layers.GroupNormalization(GROUPS),
    ):
        layer.trainable = not frozen
        x = layer(x)
    return x
