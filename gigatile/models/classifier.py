"""Classifiers of tiles: features, a dense layer and a softmax.

Inputs are decoded tiles with values 0-255, as the model scales them itself. The head runs in single
precision, so the scores of a tile add up to one.
"""

import keras

from gigatile.models import load_builder
from gigatile.models.networks import Networks, configure_keras
from gigatile.settings.train import TrainSettings


def build_classifier(
    settings: TrainSettings, tile_size: int, classes: int, pretrained: bool = True
) -> Networks:
    """Build an untrained classifier.

    Args:
        settings: the architecture, its initial weights, precision and seed.
        tile_size: side of the tiles in pixels.
        classes: number of outputs.
        pretrained: whether to load `settings.weights`. Only rank 0 does; the others get them from
            it.

    Returns:
        From (n, tile_size, tile_size, 3) pixels to (n, classes): the softmax, and the logits.
    """
    configure_keras(settings)
    if not pretrained:
        settings = settings.model_copy(update={"weights": None})
    tiles = keras.Input((tile_size, tile_size, 3), name="tiles")
    features = load_builder(settings.model)(tiles, settings)
    backbone = keras.Model(tiles, features).layers
    head = keras.layers.Dense(classes, dtype="float32", name="logits")
    logits = head(features)
    scores = keras.layers.Softmax(dtype="float32", name="scores")(logits)
    model = keras.Model(tiles, scores, name=settings.model)
    return Networks(model, keras.Model(tiles, logits), backbone, [head])
