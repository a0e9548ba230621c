"""Classifiers of whole slides: an encoder, an aggregator of its embeddings, and a softmax.

The saved model takes a whole slide as one input, so it defines what the windows compute. It has
Keras' own layers only. Aggregator and logits are in single precision.
"""

from dataclasses import dataclass

import keras
from keras import ops

from gigatile.models import load_builder
from gigatile.models.networks import Networks, configure_keras
from gigatile.settings.train import TrainSettings
from gigatile.settings.whole_slides import AggregatorName
from gigatile.whole_slides.aggregators import Aggregator, Attention, Max, Mean

# Hidden units of gated attention.
ATTENTION_UNITS = 64


def build_slide_classifier(
    settings: TrainSettings,
    aggregator: AggregatorName,
    outputs: int,
    pretrained: bool = True,
    activation: str = "softmax",
) -> Networks:
    """Build an untrained classifier, or with one output and another activation, a regression.

    Args:
        settings: the architecture of the encoder, its initial weights, precision and seed.
        aggregator: from the embeddings of all positions to one.
        outputs: their number.
        pretrained: whether to load `settings.weights`. Only rank 0 does; the others get them from
            it.
        activation: of the outputs, `softmax` or `linear`.

    Returns:
        From slides (n, height, width, 3) and their tissue (n, rows, columns, 1), 1 at the positions
        that are pooled and 0 elsewhere, to (n, outputs): the scores, and the logits.
    """
    configure_keras(settings)
    if not pretrained:
        settings = settings.model_copy(update={"weights": None})
    pixels = keras.Input((None, None, 3), name="pixels")
    encoder = keras.Model(pixels, load_builder(settings.model)(pixels, settings), name="encoder")
    slides = keras.Input((None, None, 3), name="slides")
    tissue = keras.Input((None, None, 1), name="tissue")
    embeddings = ops.cast(encoder(slides), "float32")
    pooled = _pool(embeddings, tissue, aggregator)
    head = keras.layers.Dense(outputs, dtype="float32", name="logits")
    logits = head(pooled)
    scores = keras.layers.Activation(activation, dtype="float32", name="scores")(logits)
    model = keras.Model([slides, tissue], scores, name=settings.model)
    return Networks(model, keras.Model([slides, tissue], logits), [encoder], [head])


def _pool(
    embeddings: keras.KerasTensor, tissue: keras.KerasTensor, aggregator: AggregatorName
) -> keras.KerasTensor:
    if aggregator == "max":
        return ops.max(ops.where(tissue > 0, embeddings, -3e38), axis=(1, 2))
    if aggregator == "mean":
        return ops.sum(tissue * embeddings, axis=(1, 2)) / ops.sum(tissue, axis=(1, 2))
    scores = _gated_attention(embeddings.shape[-1])(embeddings)
    scores = ops.where(tissue > 0, scores, -3e38)
    weights = ops.exp(scores - ops.max(scores, axis=(1, 2), keepdims=True))
    return ops.sum(weights * embeddings, axis=(1, 2)) / ops.sum(weights, axis=(1, 2))


def _gated_attention(channels: int) -> keras.Model:
    """Return gated attention: from embeddings (…, channels) to a score (…, 1).

    Ilse, Tomczak and Welling 2018, https://arxiv.org/abs/1802.04712, equation 9.
    """
    dense = keras.layers.Dense
    embeddings = keras.Input((None, None, channels), dtype="float32", name="embeddings")
    value = dense(ATTENTION_UNITS, activation="tanh", dtype="float32", name="value")(embeddings)
    gate = dense(ATTENTION_UNITS, activation="sigmoid", dtype="float32", name="gate")(embeddings)
    product = keras.layers.Multiply(dtype="float32")([value, gate])
    score = dense(1, use_bias=False, dtype="float32", name="score")(product)
    return keras.Model(embeddings, score, name="attention")


@dataclass(frozen=True)
class SlideClassifierParts:
    """The parts of a classifier, which share its weights.

    Attributes:
        encoder: from slides to embeddings (n, rows, columns, channels).
        aggregator: from embeddings to one.
        logits: from the pooled embedding (n, channels) to logits (n, outputs).
    """

    encoder: keras.Model
    aggregator: Aggregator
    logits: keras.Layer


def parts_of(network: keras.Model, aggregator: AggregatorName) -> SlideClassifierParts:
    """Return the parts of a network of `build_slide_classifier`, also of one that was saved."""
    pool: Aggregator
    if aggregator == "attention":
        pool = Attention(network.get_layer("attention"))
    else:
        pool = {"max": Max, "mean": Mean}[aggregator]()
    return SlideClassifierParts(network.get_layer("encoder"), pool, network.get_layer("logits"))
