"""3-D U-Nets: from patches of volumes to scores of each voxel.

The plain U-Net of nnU-Net (Isensee et al. 2021, https://doi.org/10.1038/s41592-020-01008-z): two
convolutions per level, each with instance normalisation and a leaky ReLU; strided convolutions on
the way down, transposed convolutions on the way up. Deep supervision: all levels except the two
lowest have an output for the loss; prediction uses only the finest.
"""

from collections.abc import Sequence
from typing import Literal

import keras

from gigatile.models.networks import Networks, configure_keras
from gigatile.settings.train import TrainSettings

# Channels per level. Small patches use fewer levels.
WIDTHS = {"small_unet": (8, 16, 32, 64), "unet": (32, 64, 128, 256, 320, 320)}
# A side is not halved below this many voxels.
MIN_SIDE = 4


def strides_for(patch: Sequence[int], levels: int) -> list[tuple[int, int, int]]:
    """Return the stride from each level to the next along each axis.

    Args:
        patch: (3,) voxels.
        levels: maximum number of levels.
    """
    strides, sides = [], list(patch)
    for _ in range(levels - 1):
        x, y, z = (2 if side % 2 == 0 and side // 2 >= MIN_SIDE else 1 for side in sides)
        if (x, y, z) == (1, 1, 1):
            break
        strides.append((x, y, z))
        sides = [side // stride for side, stride in zip(sides, (x, y, z), strict=True)]
    return strides


def build(
    settings: TrainSettings,
    patch: tuple[int, int, int],
    channels: int,
    outputs: int,
    activation: Literal["sigmoid", "softmax"],
) -> Networks:
    """Build an untrained U-Net.

    Args:
        settings: the architecture, its precision and seed.
        patch: (3,) voxels.
        channels: of the images.
        outputs: per voxel.
        activation: from logits to scores.

    Returns:
        From images (n, x, y, z, channels) to scores (n, x, y, z, outputs) float32; and to the list
        of logits from the finest level to the coarsest, each at half the resolution of the level
        before. If the patch is too small for several levels, the only logits, not in a list.
    """
    configure_keras(settings)
    widths = WIDTHS[settings.model]
    strides = strides_for(patch, len(widths))
    images = keras.Input((*patch, channels), name="images")
    x = _convolved(_convolved(images, widths[0]), widths[0])
    skips = []
    for width, stride in zip(widths[1:], strides, strict=False):
        skips.append(x)
        x = _convolved(_convolved(x, width, stride), width)
    logits = []
    for level in reversed(range(len(strides))):
        width, stride = widths[level], strides[level]
        x = keras.layers.Conv3DTranspose(width, stride, strides=stride, use_bias=False)(x)
        x = keras.layers.Concatenate()([x, skips[level]])
        x = _convolved(_convolved(x, width), width)
        if level == 0 or level < len(strides) - 1:
            name = f"logits_{level}"
            logits.append(keras.layers.Conv3D(outputs, 1, dtype="float32", name=name)(x))
    logits.reverse()
    scores = keras.layers.Activation(activation, dtype="float32", name="scores")(logits[0])
    return Networks(keras.Model(images, scores, name=settings.model), keras.Model(images, logits))


def _convolved(
    x: keras.KerasTensor, width: int, stride: tuple[int, int, int] = (1, 1, 1)
) -> keras.KerasTensor:
    x = keras.layers.Conv3D(width, 3, strides=stride, padding="same", use_bias=False)(x)
    # One group per channel is instance normalisation, which does not depend on the batch size.
    x = keras.layers.GroupNormalization(width, epsilon=1e-5)(x)
    return keras.layers.LeakyReLU(0.01)(x)
