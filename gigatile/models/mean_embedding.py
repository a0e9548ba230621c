"""The mean of a slide's embeddings, before a linear classifier: a linear probe."""

import keras

from gigatile.models.bag_classifier import BagParts, normalised
from gigatile.settings.train import TrainSettings


def build(
    embeddings: keras.KerasTensor, present: keras.KerasTensor, settings: TrainSettings
) -> BagParts:
    """Return the normalised embeddings, without attention; see `Architecture.kind`."""
    return BagParts(normalised(embeddings), None)
