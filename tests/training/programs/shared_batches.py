"""Train a ResNet-50 by a few steps on all ranks, and on rank 0 alone; print how far they differ.

Alone it is trained twice: by the project's own step on the whole batches with their filler, and
with Keras' layers as they are on the batches without.
"""

import argparse
import hashlib
import json
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.training.classification import Classification
from gigatile.training.joining import join
from gigatile.training.learner import Learner
from gigatile.training.models import LOGITS, build_model
from gigatile.training.ranks import Ranks

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("--mixed", action="store_true")
args = parser.parse_args()
BATCH, SIDE = 12, 32
# Of twelve tiles, so many count: of four ranks the last one has filler alone in the last step.
TOTALS = (12, 7)
SUMS = Classification(TileSettings()).sums
# Its steps are the gradients; Adam's first ones are their signs, which rounding turns.
keras.optimizers.Adam = keras.optimizers.SGD


class Alone(Ranks):
    """One rank, whatever else was launched."""

    def sum_in_step(self, values):
        return list(values)


def drawn(step):
    """Return a batch whose filler is far from its tiles."""
    random = np.random.default_rng(step)
    images = random.integers(0, 255, (BATCH, SIDE, SIDE, 3), np.uint8)
    images[TOTALS[step] :] = 255
    weights = (np.arange(BATCH) < TOTALS[step]).astype(np.float32)
    return images, random.integers(0, 3, BATCH).astype(np.int32), weights


def built(ranks):
    settings = TrainSettings(
        model="resnet50", ranks_per_node=1, batch_size=BATCH, learning_rate=0.01,
        mixed_precision=args.mixed,
    )  # fmt: skip
    model = build_model(settings, SIDE, 3)
    return keras.Model(model.input, model.get_layer(LOGITS).output), settings


def trained(ranks):
    """Return the variables after each step of the project's own."""
    network, settings = built(ranks)
    learner = Learner(network, SUMS, settings, ranks)
    share = BATCH // ranks.size
    mine = slice(ranks.rank * share, (ranks.rank + 1) * share)
    states = [[v.numpy() for v in network.variables]]
    for step, total in enumerate(TOTALS):
        images, labels, weights = (part[mine] for part in drawn(step))
        learner.step(
            tf.constant(images), labels, weights, np.float32(total), np.zeros(3, np.float32)
        )
        states.append([v.numpy() for v in network.variables])
    return states


def trained_as_keras_does(ranks):
    """Return the variables after each step of plain gradient descent on what counts."""
    network, settings = built(ranks)
    states = [[v.numpy() for v in network.variables]]

    @tf.function(reduce_retracing=True)
    def gradients(images, labels):
        with tf.GradientTape() as tape:
            loss, _ = SUMS(network(images, training=True), labels, tf.ones(len(labels)))
            mean = loss / tf.cast(tf.shape(labels)[0], tf.float32)
        return tape.gradient(mean, [weight.value for weight in network.trainable_variables])

    for step, total in enumerate(TOTALS):
        images, labels, _ = drawn(step)
        found = gradients(tf.constant(images[:total]), tf.constant(labels[:total]))
        for weight, gradient in zip(network.trainable_variables, found, strict=True):
            weight.assign_sub(settings.learning_rate * gradient)
        states.append([v.numpy() for v in network.variables])
    return states


def differences(one, other):
    """Return the relative difference of what each step has changed, by the worst variable."""
    return [
        max(
            float(np.linalg.norm(a1 - b1) / max(1e-3, np.linalg.norm(a1 - a0)))
            for a0, a1, b1 in zip(one[0], after, theirs, strict=True)
        )
        for after, theirs in zip(one[1:], other[1:], strict=True)
    ]


with join(cores=1, stall_limit=1200) as ranks:
    together = trained(ranks)
    digest = hashlib.sha256(b"".join(v.tobytes() for v in together[-1])).hexdigest()
    (args.out / f"rank-{ranks.rank}").write_text(digest)
    if ranks.writes:
        alone = trained(Alone(0, 1, ranks.threads))
        found = {"ranks": differences(alone, together)}
        if not args.mixed:
            found["keras"] = differences(trained_as_keras_does(ranks), alone)
        (args.out / "found.json").write_text(json.dumps(found))
