"""ResNet-50 (He et al. 2016, https://doi.org/10.1109/CVPR.2016.90) as encoder of whole slides."""

import keras

from gigatile.models.resnet50 import resnet50
from gigatile.settings.train import TrainSettings

# Means of ImageNet, red, green, blue.
MEANS = (123.68, 116.779, 103.939)


def build(slides: keras.KerasTensor, settings: TrainSettings) -> keras.KerasTensor:
    """Return embeddings (n, rows, columns, 2048) of slides (n, height, width, 3), values 0-255.

    An embedding covers 32 pixels. Batch normalisation is frozen: its statistics are those of the
    initial weights, as statistics of a window would not be those of the slide.

    Raises:
        UserError: `settings.weights` cannot be loaded.
    """
    x = keras.layers.Rescaling(1.0, offset=[-mean for mean in MEANS])(slides)
    backbone = resnet50(settings.weights, (None, None, 3), pooling=None)
    # The published weights expect blue, green, red.
    first = backbone.get_layer("conv1_conv")
    kernel, bias = first.get_weights()
    first.set_weights([kernel[:, :, ::-1], bias])
    for layer in backbone.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = False
    return backbone(x)
