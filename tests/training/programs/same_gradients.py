"""Take a few training steps on all ranks, and the same on rank 0 alone; write the differences.

The differences are written to <out>/differences.json, and the SHA-256 of each rank's variables to
<out>/rank-<number>.
"""

import argparse
import contextlib
import hashlib
import json
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from gigatile.models import resnet50 as architecture
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.tasks.tile_classification.training import TileClassification
from gigatile.training.batches import Batch
from gigatile.training.learner import Learner
from gigatile.training.ranks import Ranks
from gigatile.training.startup import join_ranks

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
args = parser.parse_args()
BATCH, SIDE, CLASSES = 8, 32, 3
# Tiles in the batch of each step; the rest is padding. The second of two ranks has one tile in the
# first step, and only padding in the third.
TOTALS = (5, 8, 4)
SETTINGS = TrainSettings(model="resnet50", batch_size=BATCH, learning_rate=1e-3)
TASK = TileClassification(TileSettings())


class Alone(Ranks):
    """A single rank that does not communicate."""

    def sum_in_step(self, values):
        return [tf.convert_to_tensor(value) for value in values]


def resnet50():
    tiles = keras.Input((SIDE, SIDE, 3))
    return keras.Model(tiles, keras.layers.Dense(CLASSES)(architecture.build(tiles, SETTINGS)))


def three_normalisations():
    x = tiles = keras.Input((SIDE, SIDE, 3))
    for filters in (4, 8, 16):
        x = keras.layers.Conv2D(filters, 3, strides=2, use_bias=False)(x)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(tiles, keras.layers.Dense(CLASSES)(x))


def batch(step, dtype):
    """Return images, labels and weights; padding has extreme values."""
    random = np.random.default_rng(step)
    images = random.integers(0, 256, (BATCH, SIDE, SIDE, 3)).astype(dtype)
    images[TOTALS[step] :] = 1e6
    weights = (np.arange(BATCH) < TOTALS[step]).astype(dtype)
    return images, random.integers(0, CLASSES, BATCH).astype(np.int32), weights


@contextlib.contextmanager
def recorded_gradients(learner):
    """Yield a list to which the gradients of each step are appended."""
    gradients, apply = [], learner._optimizer.apply

    def record(values):
        keep = tf.numpy_function(lambda *arrays: gradients.append(arrays) or 0, values, tf.int64)
        with tf.control_dependencies([keep]):
            return apply([tf.identity(value) for value in values])

    learner._optimizer.apply = record
    yield gradients
    learner._optimizer.apply = apply


def train(build, ranks, steps, dtype="float64", weights=None):
    """Return the initial weights, the gradients of each step, and the variables at the end."""
    keras.config.set_dtype_policy(dtype)
    keras.utils.set_random_seed(4)
    network = build()
    if weights:
        network.set_weights(weights)
    initial = network.get_weights()
    learner = Learner(network, TASK, SETTINGS, ranks)
    share = BATCH // ranks.size
    part = slice(ranks.rank * share, (ranks.rank + 1) * share)
    with recorded_gradients(learner) as gradients:
        for step in range(steps):
            images, labels, counted = (array[part] for array in batch(step, dtype))
            own_slice = Batch(images, labels, counted, TOTALS[step], 0, 0)
            learner.step(own_slice, tf.constant(images), np.zeros(3, dtype), SETTINGS.learning_rate)
    return initial, gradients, [variable.numpy() for variable in network.variables]


def keras_gradients(build, weights):
    """Return the gradients of the first step: Keras' own layers on a batch without padding."""
    keras.config.set_dtype_policy("float64")
    network = build()
    network.set_weights(weights)
    images, labels, _ = (array[: TOTALS[0]] for array in batch(0, "float64"))
    with tf.GradientTape() as tape:
        scores = network(images, training=True)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
        loss = tf.reduce_mean(loss)
    return tape.gradient(loss, [weight.value for weight in network.trainable_weights])


def difference(values, expected):
    """Return the norm of the difference of two lists of arrays, relative to `expected`."""
    square = sum(np.sum((np.array(a) - b) ** 2.0) for a, b in zip(values, expected, strict=True))
    return float(np.sqrt(square / sum(np.sum(b**2.0) for b in map(np.array, expected))))


def compare(build, ranks, steps):
    """Return the differences between all ranks and one, on rank 0, and the variables.

    Tracing the graph of a large network takes a minute, running it eagerly takes seconds. So only
    small networks are traced, on all ranks.
    """
    differences = {}
    tf.config.run_functions_eagerly(build == resnet50)
    initial, gradients, variables = train(build, ranks, steps)
    if build != resnet50:
        _, single, _ = train(build, ranks, 1, "float32", initial)
        differences["single precision"] = difference(single[0], gradients[0])
        differences["keras"] = difference(gradients[0], keras_gradients(build, initial))
    if ranks.writes:
        tf.config.run_functions_eagerly(True)
        _, expected, after = train(build, Alone(0, 1, ranks.threads), steps)
        pairs = zip(gradients, expected, strict=True)
        differences["gradients"] = [difference(*pair) for pair in pairs]
        moved = [np.abs(a - b).max() for a, b in zip(variables, after, strict=True)]
        differences["variables, in learning rates"] = float(max(moved)) / SETTINGS.learning_rate
    return differences, variables


with join_ranks(cores=1, stall_limit=250) as ranks:
    small, variables = compare(three_normalisations, ranks, 3)
    resnet, more = compare(resnet50, ranks, 1)
    digest = hashlib.sha256(b"".join(part.tobytes() for part in [*variables, *more])).hexdigest()
    (args.out / f"rank-{ranks.rank}").write_text(digest)
    if ranks.writes:
        results = {"small": small, "resnet50": resnet}
        (args.out / "differences.json").write_text(json.dumps(results))
