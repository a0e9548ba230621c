"""ResNet-50 (He et al. 2016, https://doi.org/10.1109/CVPR.2016.90)."""

from pathlib import Path

import keras

from gigatile.errors import UserError
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
    return load_backbone(settings.weights, tuple(tiles.shape[1:]), pooling="avg")(x)


def load_backbone(
    weights: str | None, shape: tuple[int | None, ...], pooling: str | None
) -> keras.Model:
    """Return ResNet-50 without its top layer, for pixels after `caffe` preprocessing.

    Args:
        weights: None (random), `imagenet`, or a local .h5 file.
        shape: of a picture: height, width, channels.
        pooling: `avg`, or None: all positions.

    Raises:
        UserError: the weights cannot be loaded.
    """
    if weights not in (None, "imagenet") and not Path(weights).is_file():
        raise UserError(
            f"train.weights: no such file: {weights}; use null, `imagenet` or a local .h5 file"
        )
    try:
        return keras.applications.ResNet50(
            include_top=False, weights=weights, input_shape=shape, pooling=pooling
        )
    except Exception as error:  # Keras raises many types for a wrong file or without a network
        if weights is None:
            raise
        raise UserError(
            f"train.weights: cannot load {weights} as weights of ResNet-50 without its top layer "
            f"({' '.join(str(error).split())[:300]})"
        ) from None
