"""Classifiers of slides by the embeddings of their tiles: attention, a dense layer and a softmax.

The saved model has Keras' own layers only. Attention, pooling and logits are in single precision.
"""

from dataclasses import dataclass

import keras
from keras import ops

from gigatile.models import load_builder
from gigatile.models.networks import Networks, configure_keras
from gigatile.settings.train import TrainSettings

# What attention is for padding.
NOTHING = -1e30


@dataclass(frozen=True)
class BagParts:
    """What an architecture computes of each tile.

    Attributes:
        vectors: (n, tiles, numbers), which are pooled.
        scores: of attention, (n, tiles, 1); None: all tiles count the same.
        mixes: whether the vector of a tile depends on the other tiles of the slide.
    """

    vectors: keras.KerasTensor
    scores: keras.KerasTensor | None
    mixes: bool = False


def normalised(embeddings: keras.KerasTensor) -> keras.KerasTensor:
    """Return each embedding with mean 0 and variance 1, in single precision.

    Encoders differ in scale. Trained scales and offsets would take a third of a training step, and
    the dense layer that follows can do what they do.
    """
    norm = keras.layers.LayerNormalization(center=False, scale=False, dtype="float32", name="norm")
    return norm(embeddings)


def build_bag_classifier(
    settings: TrainSettings,
    dimensions: int,
    classes: int,
    pretrained: bool = True,
    activation: str = "softmax",
) -> Networks:
    """Build an untrained classifier, or with one output and another activation, a regression.

    Args:
        settings: the architecture, its precision and seed.
        dimensions: numbers of an embedding.
        classes: number of outputs.
        pretrained: has no effect: there are no published weights.
        activation: of the outputs, `softmax` or `linear`.

    Returns:
        From `embeddings`, (n, tiles, dimensions), and `present`, (n, tiles) with 1 for a tile and 0
        for padding, to (n, classes): the outputs, and the logits.
    """
    configure_keras(settings)
    one_slide = keras.Input((None, dimensions), dtype="float32", name="tiles")
    padding = keras.Input((None,), dtype="float32", name="present_tiles")
    parts = load_builder(settings.model)(one_slide, padding, settings)
    parts_of_tiles = {"vectors": ops.cast(parts.vectors, "float32")}
    if parts.scores is not None:
        parts_of_tiles["scores"] = ops.cast(parts.scores, "float32")
    of_tiles = keras.Model(
        [one_slide, padding] if parts.mixes else one_slide, parts_of_tiles, name="tiles"
    )
    inputs = {
        "embeddings": keras.Input((None, dimensions), dtype="float32", name="embeddings"),
        "present": keras.Input((None,), dtype="float32", name="present"),
    }
    of_slide = of_tiles(list(inputs.values()) if parts.mixes else inputs["embeddings"])
    pooled = _pool(of_slide["vectors"], of_slide.get("scores"), inputs["present"][..., None])
    head = keras.layers.Dense(classes, dtype="float32", name="logits")
    logits = head(pooled)
    outputs = keras.layers.Activation(activation, dtype="float32", name="scores")(logits)
    model = keras.Model(inputs, outputs, name=settings.model)
    return Networks(model, keras.Model(inputs, logits), [of_tiles], [head])


def _pool(
    vectors: keras.KerasTensor, scores: keras.KerasTensor | None, present: keras.KerasTensor
) -> keras.KerasTensor:
    """Return the weighted mean of the vectors of the tiles that are present."""
    weights = present
    if scores is not None:
        scores = ops.where(present > 0, scores, NOTHING)
        weights = ops.exp(scores - ops.max(scores, axis=1, keepdims=True))
    return ops.sum(weights * vectors, axis=1) / ops.sum(weights, axis=1)


def parts_of(network: keras.Model) -> tuple[keras.Model, keras.Layer]:
    """Return the model of tiles and the last layer of a classifier, also of one that was saved.

    The model of tiles turns embeddings (n, tiles, dimensions) into `vectors` and, with attention,
    its `scores`. If the vector of a tile depends on the others, it `mixes`, and a second input says
    which tiles are present. The layer turns a vector into logits.
    """
    return network.get_layer("tiles"), network.get_layer("logits")


def mixes(of_tiles: keras.Model) -> bool:
    """Return whether, in a model of tiles, the vector of a tile depends on the others."""
    return len(of_tiles.inputs) > 1
