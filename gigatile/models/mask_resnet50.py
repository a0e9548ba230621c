"""ResNet-50 as the backbone of Mask R-CNN (He et al. 2016, https://doi.org/10.1109/CVPR.2016.90).

Batch normalisation is fixed: a batch of a few images is too small for its statistics. So it needs
pretrained weights; `mask_resnet50_gn` trains from random ones.
"""

import keras

from gigatile.models.mask_rcnn import Backbone
from gigatile.models.resnet50 import resnet50
from gigatile.settings.train import TrainSettings

# The last layers of the stages with strides 4, 8, 16 and 32, and the prefixes of all stages.
LEVELS = ("conv2_block3_out", "conv3_block4_out", "conv4_block6_out", "conv5_block3_out")
STAGES = ("conv1", "conv2", "conv3", "conv4", "conv5")


def build(images: keras.KerasTensor, settings: TrainSettings, frozen: int) -> Backbone:
    """Return the backbone; see `Backbone`.

    Raises:
        UserError: `settings.weights` cannot be loaded.
    """
    network = resnet50(settings.weights, (None, None, 3), pooling=None)
    for layer in network.layers:
        fixed = isinstance(layer, keras.layers.BatchNormalization)
        layer.trainable = not (fixed or layer.name.startswith(STAGES[:frozen]))
    return Backbone(
        levels_of(network, images),
        channels=256,
        hidden=1024,
        convolutions=4,
        # Half the variance of He et al., as in detectron2 and tensorpack: without normalisation,
        # the sums of the pyramid would make its lower levels large.
        initial="lecun_normal",
    )


def levels_of(network: keras.Model, images: keras.KerasTensor) -> list[keras.KerasTensor]:
    """Return the feature maps of a ResNet-50 for images with values 0-255."""
    # The published weights expect BGR minus the means of ImageNet (`caffe` preprocessing).
    reverse = keras.ops.flip(keras.ops.cast(images, "float32"), axis=-1)
    x = keras.layers.Rescaling(1.0, offset=[-103.939, -116.779, -123.68])(reverse)
    outputs = [network.get_layer(name).output for name in LEVELS]
    return list(keras.Model(network.input, outputs, name="resnet50")(x))
