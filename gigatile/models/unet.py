"""3-D U-Nets: from patches of volumes to scores of each voxel.

The plain U-Net of nnU-Net (Isensee et al. 2021, https://doi.org/10.1038/s41592-020-01008-z): two
convolutions per level, each with instance normalisation and a leaky ReLU; strided convolutions on
the way down, transposed convolutions on the way up. Deep supervision: all levels except the two
lowest have an output for the loss; prediction uses only the finest.

With a residual encoder (Isensee et al. 2024, https://doi.org/10.1007/978-3-031-72114-4_47), a level
has several residual blocks on the way down, and one convolution on the way up.
"""

from collections.abc import Sequence
from typing import Literal

import keras

from gigatile.models.networks import Networks, configure_keras
from gigatile.settings.train import TrainSettings

# Channels per level. Small patches use fewer levels.
SMALL, LARGE = (8, 16, 32, 64), (32, 64, 128, 256, 320, 320)
WIDTHS = {
    "small_unet": SMALL,
    "unet": LARGE,
    "small_residual_unet": SMALL,
    "residual_unet": LARGE,
}
# Residual blocks of each level of the encoder.
BLOCKS = {"small_residual_unet": (1, 2, 2, 2), "residual_unet": (1, 3, 4, 6, 6, 6)}
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
    blocks = BLOCKS.get(settings.model)
    x, skips = _convolved(images, widths[0]), []
    for level, stride in enumerate([(1, 1, 1), *strides]):
        if level:
            skips.append(x)
        if blocks:
            for number in range(blocks[level]):
                x = _residual_block(x, widths[level], (1, 1, 1) if number else stride)
        elif level:
            x = _convolved(_convolved(x, widths[level], stride), widths[level])
        else:
            x = _convolved(x, widths[0])
    logits = []
    for level in reversed(range(len(strides))):
        width, stride = widths[level], strides[level]
        x = keras.layers.Conv3DTranspose(width, stride, strides=stride, use_bias=False)(x)
        x = keras.layers.Concatenate()([x, skips[level]])
        x = _convolved(x, width) if blocks else _convolved(_convolved(x, width), width)
        if level == 0 or level < len(strides) - 1:
            name = f"logits_{level}"
            logits.append(keras.layers.Conv3D(outputs, 1, dtype="float32", name=name)(x))
    logits.reverse()
    scores = keras.layers.Activation(activation, dtype="float32", name="scores")(logits[0])
    trained = keras.Model(images, logits)
    last = [layer for layer in trained.layers if layer.name.startswith("logits_")]
    backbone = [layer for layer in trained.layers if layer not in last]
    return Networks(keras.Model(images, scores, name=settings.model), trained, backbone, last)


def _convolved(
    x: keras.KerasTensor, width: int, stride: tuple[int, int, int] = (1, 1, 1)
) -> keras.KerasTensor:
    x = keras.layers.Conv3D(width, 3, strides=stride, padding="same", use_bias=False)(x)
    return keras.layers.LeakyReLU(0.01)(_normalised(x, width))


def _normalised(x: keras.KerasTensor, width: int) -> keras.KerasTensor:
    # One group per channel is instance normalisation, which does not depend on the batch size.
    return keras.layers.GroupNormalization(width, epsilon=1e-5)(x)


def _residual_block(
    x: keras.KerasTensor, width: int, stride: tuple[int, int, int]
) -> keras.KerasTensor:
    """Return two convolutions plus a shortcut (He et al. 2019, https://arxiv.org/abs/1812.01187).

    The shortcut averages voxels where the block halves the resolution (ResNet-D).
    """
    shortcut = x
    if stride != (1, 1, 1):
        # TensorFlow has no mean in half precision on CPUs.
        shortcut = keras.layers.AveragePooling3D(stride, stride, dtype="float32")(shortcut)
    if x.shape[-1] != width:
        shortcut = keras.layers.Conv3D(width, 1, use_bias=False)(shortcut)
        shortcut = _normalised(shortcut, width)
    x = keras.layers.Conv3D(width, 3, padding="same", use_bias=False)(_convolved(x, width, stride))
    return keras.layers.LeakyReLU(0.01)(keras.layers.Add()([_normalised(x, width), shortcut]))
