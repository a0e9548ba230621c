"""Mask R-CNN with a feature pyramid (He et al. 2017, https://arxiv.org/abs/1703.06870).

The saved model consists of Keras' own layers only: the backbone with its pyramid and the region
proposal network, the box head and the mask head. Proposals and RoIAlign, which connect them, have
no weights; `gigatile.instances` computes them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import keras
from keras import layers

from gigatile.models import load_builder
from gigatile.models.networks import Networks, configure_keras
from gigatile.settings.train import TrainSettings

# Bins of the pooled boxes along each axis, for the box head and the mask head.
BOX_SIZE, MASK_SIZE = 7, 14


@dataclass(frozen=True)
class Backbone:
    """A backbone and the sizes of the heads that suit it.

    Attributes:
        levels: from images (n, height, width, 3), values 0-255, to the feature maps with strides 4,
            8, 16 and 32.
        channels: of the pyramid, the region proposal network and the mask head.
        hidden: units of each of the two dense layers of the box head.
        convolutions: of the mask head.
        normalise: returns a normalisation layer for pyramid and heads; None: none.
        initial: initial weights of the pyramid, the region proposal network and the box head.
    """

    levels: Sequence[keras.KerasTensor]
    channels: int
    hidden: int
    convolutions: int
    normalise: Callable[[], keras.layers.Layer] | None = None
    initial: str = "he_normal"


def build_mask_rcnn(
    settings: TrainSettings, classes: int, anchors: int, frozen: int, pretrained: bool = True
) -> Networks:
    """Build an untrained Mask R-CNN.

    Args:
        settings: the architecture of the backbone, its initial weights, precision and seed.
        classes: number of classes, without background.
        anchors: per position of a feature map.
        frozen: number of stages of the backbone that are not trained.
        pretrained: whether to load `settings.weights`. Only rank 0 does; the others get them from
            it.

    Returns:
        A model, twice: from images (n, height, width, 3), pooled boxes (n, 7, 7, channels) and
        pooled boxes for masks (n, 14, 14, channels) to the outputs of its three parts; see
        `parts_of`.
    """
    configure_keras(settings)
    if not pretrained:
        settings = settings.model_copy(update={"weights": None})
    images = keras.Input((None, None, 3), name="images")
    backbone: Backbone = load_builder(settings.model)(images, settings, frozen)
    levels = _pyramid(backbone)
    trunk = keras.Model(
        images, [*levels, *_region_proposals(levels, backbone, anchors)], name="trunk"
    )
    box_head = _box_head(backbone, classes)
    mask_head = _mask_head(backbone, classes)
    boxes = keras.Input(box_head.input_shape[1:], name="boxes")
    masks = keras.Input(mask_head.input_shape[1:], name="masks")
    outputs = [*trunk(images), *box_head(boxes), mask_head(masks)]
    model = keras.Model([images, boxes, masks], outputs, name=settings.model)
    last = [
        *(box_head.get_layer("classes"), box_head.get_layer("box_deltas")),
        mask_head.get_layer("mask_logits"),
    ]
    return Networks(model, model, keras.Model(images, backbone.levels).layers, last)


def _normalised(x: keras.KerasTensor, backbone: Backbone) -> keras.KerasTensor:
    return x if backbone.normalise is None else backbone.normalise()(x)


def _convolution(
    channels: int, size: int, name: str, initial: str, **options: object
) -> keras.layers.Layer:
    return layers.Conv2D(
        channels, size, padding="same", kernel_initializer=initial, name=name, **options
    )


def _pyramid(backbone: Backbone) -> list[keras.KerasTensor]:
    """Return the feature maps of levels 2 to 6: Lin et al. 2017, section 3."""
    merged: list[keras.KerasTensor] = []
    for number in range(5, 1, -1):
        lateral = _convolution(backbone.channels, 1, f"lateral_{number}", backbone.initial)(
            backbone.levels[number - 2]
        )
        lateral = _normalised(lateral, backbone)
        if merged:
            above = layers.UpSampling2D(2, name=f"upsampled_{number + 1}")(merged[-1])
            lateral = layers.Add(name=f"merged_{number}")([above, lateral])
        merged.append(lateral)
    outputs = []
    for number, level in zip(range(2, 6), reversed(merged), strict=True):
        x = _convolution(backbone.channels, 3, f"pyramid_{number}", backbone.initial)(level)
        outputs.append(_normalised(x, backbone))
    last = layers.MaxPooling2D(1, strides=2, name="pyramid_6")(outputs[-1])
    return [*outputs, last]


def _region_proposals(
    levels: Sequence[keras.KerasTensor], backbone: Backbone, anchors: int
) -> list[keras.KerasTensor]:
    """Return the objectness of all levels, then their deltas."""
    small = keras.initializers.RandomNormal(stddev=0.01)
    shared = _convolution(backbone.channels, 3, "rpn", backbone.initial, activation="relu")
    objectness = layers.Conv2D(anchors, 1, kernel_initializer=small, name="objectness")
    deltas = layers.Conv2D(4 * anchors, 1, kernel_initializer=small, name="deltas")
    hidden = [shared(level) for level in levels]
    scores = [layers.Reshape((-1,), dtype="float32")(objectness(x)) for x in hidden]
    moves = [layers.Reshape((-1, 4), dtype="float32")(deltas(x)) for x in hidden]
    return [*scores, *moves]


def _box_head(backbone: Backbone, classes: int) -> keras.Model:
    pooled = keras.Input((BOX_SIZE, BOX_SIZE, backbone.channels), name="pooled_boxes")
    x = layers.Flatten()(pooled)
    for number in (1, 2):
        x = layers.Dense(
            backbone.hidden,
            activation="relu",
            kernel_initializer=backbone.initial,
            name=f"hidden_{number}",
        )(x)
    scores = layers.Dense(
        1 + classes,
        kernel_initializer=keras.initializers.RandomNormal(stddev=0.01),
        dtype="float32",
        name="classes",
    )(x)
    deltas = layers.Dense(
        4 * classes,
        kernel_initializer=keras.initializers.RandomNormal(stddev=0.001),
        dtype="float32",
        name="box_deltas",
    )(x)
    deltas = layers.Reshape((classes, 4), dtype="float32")(deltas)
    return keras.Model(pooled, [scores, deltas], name="box_head")


def _mask_head(backbone: Backbone, classes: int) -> keras.Model:
    pooled = keras.Input((MASK_SIZE, MASK_SIZE, backbone.channels), name="pooled_masks")
    x = pooled
    for number in range(1, backbone.convolutions + 1):
        convolution = _convolution(backbone.channels, 3, f"mask_{number}", "he_normal")
        x = _normalised(convolution(x), backbone)
        x = layers.ReLU()(x)
    x = layers.Conv2DTranspose(
        backbone.channels,
        2,
        strides=2,
        activation="relu",
        kernel_initializer="he_normal",
        name="mask_upsampled",
    )(x)
    logits = layers.Conv2D(
        classes,
        1,
        kernel_initializer=keras.initializers.RandomNormal(stddev=0.001),
        dtype="float32",
        name="mask_logits",
    )(x)
    return keras.Model(pooled, logits, name="mask_head")


@dataclass(frozen=True)
class MaskRCNNParts:
    """The parts of a Mask R-CNN, which share its weights.

    Attributes:
        trunk: from images (n, height, width, 3) to the feature maps of levels 2 to 6, the
            objectness of each level, (n, positions x anchors), and the deltas of each level,
            (n, positions x anchors, 4).
        box_head: from pooled boxes (n, 7, 7, channels) to logits (n, 1 + classes), of which the
            first is background, and deltas (n, classes, 4).
        mask_head: from pooled boxes (n, 14, 14, channels) to logits (n, 28, 28, classes).
    """

    trunk: keras.Model
    box_head: keras.Model
    mask_head: keras.Model


def parts_of(network: keras.Model) -> MaskRCNNParts:
    """Return the parts of a network of `build_mask_rcnn`, also of one that was saved."""
    return MaskRCNNParts(*map(network.get_layer, ("trunk", "box_head", "mask_head")))
