"""Networks of Keras Applications without their top layer, with random or published weights."""

from collections.abc import Callable
from typing import Any

import keras

from gigatile.errors import UserError
from gigatile.settings.initial_weights import weights_file


def load_backbone(
    application: Callable[..., keras.Model],
    title: str,
    weights: str | None,
    shape: tuple[int | None, ...],
    pooling: str | None,
) -> keras.Model:
    """Return a network of Keras Applications without its top layer.

    Args:
        application: builds it, such as `keras.applications.ResNet50`.
        title: its name, for messages.
        weights: None (random), `imagenet`, or a local .h5 file.
        shape: of a picture: height, width, channels.
        pooling: `avg`, or None: all positions.

    Raises:
        UserError: the weights cannot be loaded, or the picture is too small.
    """
    path = weights_file(weights)
    if path and not path.is_file():
        raise UserError(
            f"train.weights: no such file: {weights}; use null, `imagenet` or a local .h5 file"
        )
    try:
        return application(include_top=False, weights=weights, input_shape=shape, pooling=pooling)
    except Exception as error:  # Keras raises many types for a wrong file or without a network
        reason = " ".join(str(error).split())[:300]
        if weights is None:
            raise UserError(f"train.model: {title} cannot be built ({reason})") from None
        raise UserError(
            f"train.weights: cannot load {weights} as weights of {title} without its top layer "
            f"({reason})"
        ) from None


def without_dropout(network: keras.Model) -> keras.Model:
    """Return a copy of a network without dropout: all ranks would drop the same activations."""

    def kept(layer: keras.Layer) -> Any:
        if isinstance(layer, keras.layers.Dropout):
            return keras.layers.Identity(name=layer.name)
        return type(layer).from_config(layer.get_config())

    copy = keras.models.clone_model(network, clone_function=kept)
    copy.set_weights(network.get_weights())
    return copy
