"""3-D U-Nets: from patches of volumes to scores of each voxel.

The plain convolutional net of nnU-Net (Isensee et al. 2021,
https://doi.org/10.1038/s41592-020-01008-z): two convolutions a level, each with instance
normalisation and a leaky ReLU, halved by strides and doubled by transposed convolutions, with an
output at each level but the two lowest, which are learnt from and not used afterwards.
"""

from collections.abc import Sequence
from typing import Literal

import keras

from gigatile.settings.train import TrainSettings
from gigatile.training.task import Networks

# Channels of each level; fewer levels where a patch is too small for all of them.
WIDTHS = {"small_unet": (8, 16, 32, 64), "unet": (32, 64, 128, 256, 320, 320)}
# A side is halved as long as so many voxels of it are left.
LEAST_SIDE = 4


def strides_of(patch: Sequence[int], levels: int) -> list[tuple[int, int, int]]:
    """Return by how much each level is smaller than the one before it, along each axis.

    Args:
        patch: (3,) voxels.
        levels: at most.
    """
    strides, sides = [], list(patch)
    for _ in range(levels - 1):
        x, y, z = (2 if side % 2 == 0 and side // 2 >= LEAST_SIDE else 1 for side in sides)
        if (x, y, z) == (1, 1, 1):
            break
        strides.append((x, y, z))
        sides = [side // stride for side, stride in zip(sides, (x, y, z), strict=True)]
    return strides


def build_unet(
    settings: TrainSettings,
    patch: tuple[int, int, int],
    channels: int,
    outputs: int,
    activation: Literal["sigmoid", "softmax"],
) -> Networks:
    """Build an untrained U-Net.

    Args:
        settings: which one, its arithmetic and the seed of its weights.
        patch: (3,) voxels.
        channels: of the images.
        outputs: of each voxel.
        activation: what makes scores of them.

    Returns:
        From (n, x, y, z, channels) images: the model to scores, (n, x, y, z, outputs) float32, and
        what is trained to a list of logits, each of half the resolution of the one before; where
        the patch is too small for more than one, to that alone.
    """
    policy = "mixed_float16" if settings.mixed_precision else "float32"
    keras.mixed_precision.set_dtype_policy(policy)
    keras.utils.set_random_seed(settings.seed)
    widths = WIDTHS[settings.model]
    strides = strides_of(patch, len(widths))
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
    # As many groups as channels: instance normalisation, which batches of two do not disturb.
    x = keras.layers.GroupNormalization(width, epsilon=1e-5)(x)
    return keras.layers.LeakyReLU(0.01)(x)
