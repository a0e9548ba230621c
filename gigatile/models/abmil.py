"""ABMIL, gated attention over the tiles of a slide.

Ilse, Tomczak and Welling 2018, https://arxiv.org/abs/1802.04712, equation 9.
"""

import keras

from gigatile.models.bag_classifier import BagParts, normalised
from gigatile.settings.train import TrainSettings

# Numbers of a tile's vector, and hidden units of its attention.
VECTOR, HIDDEN = 512, 256


def build(
    embeddings: keras.KerasTensor, present: keras.KerasTensor, settings: TrainSettings
) -> BagParts:
    """Return vectors of tiles and their scores of attention; see `Architecture.kind`."""
    layers = keras.layers
    vectors = layers.Dense(VECTOR, activation="relu", name="vector")(normalised(embeddings))
    value = layers.Dense(HIDDEN, activation="tanh", name="value")(vectors)
    gate = layers.Dense(HIDDEN, activation="sigmoid", name="gate")(vectors)
    product = layers.Multiply(name="gated")([value, gate])
    return BagParts(
        vectors, layers.Dense(1, use_bias=False, dtype="float32", name="score")(product)
    )
