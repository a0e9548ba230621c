"""ResNet-50 (He et al. 2016, https://doi.org/10.1109/CVPR.2016.90)."""

import keras

from gigatile.models.pretrained import load_backbone
from gigatile.settings.train import TrainSettings


def build(tiles: keras.KerasTensor, settings: TrainSettings) -> keras.KerasTensor:
    """Return features (n, 2048) of tiles (n, side, side, 3) with values 0-255.

    Raises:
        UserError: `settings.weights` cannot be loaded.
    """
    # The published weights expect BGR minus the means of ImageNet (`caffe` preprocessing). It is
    # part of the network, so that the saved model includes it.
    reverse = keras.ops.flip(keras.ops.cast(tiles, "float32"), axis=-1)
    x = keras.layers.Rescaling(1.0, offset=[-103.939, -116.779, -123.68])(reverse)
    return resnet50(settings.weights, tuple(tiles.shape[1:]), pooling="avg")(x)


def resnet50(
    weights: str | None, shape: tuple[int | None, ...], pooling: str | None
) -> keras.Model:
    """Return ResNet-50 for pixels after `caffe` preprocessing; see `load_backbone`."""
    return load_backbone(keras.applications.ResNet50, "ResNet-50", weights, shape, pooling)
