"""Train on bags of different sizes: nested samples, several losses, gradients of one or two passes.

Run it with `mpirun` on any number of ranks; rank 0 writes the segment.
"""

import argparse
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from gigatile.models.networks import Networks, configure_keras
from gigatile.records.example import decode_example
from gigatile.records.tfrecord import read_sized
from gigatile.settings.train import TrainSettings
from gigatile.training import loop
from gigatile.training.batches import ArraySpec
from gigatile.training.sample_order import Sampling
from gigatile.training.startup import join_ranks
from gigatile.training.task import TrainingTask

FEATURES, CHUNK = 6, 3


class BagReader:
    """Reads bags: their instances padded to the largest of the batch, and a mask."""

    def __init__(self, reader, padding):
        self._reader, self._padding = reader, padding

    def _bag(self, number):
        example = decode_example(read_sized(*self._reader.locate(number)))
        instances = np.frombuffer(example["instances"], "<f4").reshape(-1, FEATURES)
        boxes = np.frombuffer(example["boxes"], "<f4").reshape(-1, 2)
        return instances, boxes, int(example["class"])

    def specs(self, samples):
        bags = [self._bag(number) for number in samples.records.tolist()]
        instances = max(len(bag[0]) for bag in bags) + self._padding
        boxes = max(len(bag[1]) for bag in bags) + self._padding
        return (
            {
                "instances": ArraySpec((instances, FEATURES), np.dtype(np.float32)),
                "mask": ArraySpec((instances,), np.dtype(np.float32)),
            },
            {
                "label": ArraySpec((), np.dtype(np.int32)),
                "regions": (
                    ArraySpec((boxes, 2), np.dtype(np.float32)),
                    ArraySpec((boxes,), np.dtype(np.float32)),
                ),
            },
        )

    def fill(self, samples, inputs, targets):
        for index, number in enumerate(samples.records.tolist()):
            instances, boxes, label = self._bag(number)
            boxes_of_batch, box_mask = targets["regions"]
            for array, mask, values in (
                (inputs["instances"], inputs["mask"], instances),
                (boxes_of_batch, box_mask, boxes),
            ):
                array[index, : len(values)] = values
                array[index, len(values) :] = 1e3  # must not be used
                mask[index] = np.arange(mask.shape[1]) < len(values)
            targets["label"][index] = label
        return 0.0, 0.0


class Bags(TrainingTask):
    """Classifies a bag by attention (Ilse et al. 2018), and predicts the mean of its boxes."""

    name, samples = "bags", "bags"
    metrics = ("cross_entropy", "box_loss", "accuracy")

    def __init__(self, padding, passes, normalised):
        self._padding, self._passes, self._normalised = padding, passes, normalised

    def source(self, reader, augmented=True):
        return BagReader(reader, self._padding)

    def sampling(self, reader, settings):
        return Sampling(reader.counts, settings.seed, 1)

    def networks(self, reader, settings, pretrained):
        configure_keras(settings)
        instances = keras.Input((None, FEATURES), name="instances")
        mask = keras.Input((None,), name="mask")
        embedded = keras.layers.Dense(8, activation="tanh", name="embed")(instances)
        if self._normalised:
            embedded = keras.layers.BatchNormalization(name="norm")(embedded)
        head = self._head()
        model = keras.Model({"instances": instances, "mask": mask}, head([embedded, mask]))
        return Networks(model, model)

    def _head(self):
        embedded, mask = keras.Input((None, 8)), keras.Input((None,))
        scores = keras.layers.Dense(1, use_bias=False, name="attention")(embedded)[..., 0]
        attention = keras.ops.softmax(keras.ops.where(mask > 0, scores, -1e9))
        bag = keras.ops.sum(embedded * attention[..., None], axis=1)
        outputs = {
            "logits": keras.layers.Dense(2, name="classes")(bag),
            "box": keras.layers.Dense(2, name="box")(bag),
        }
        return keras.Model([embedded, mask], outputs, name="head")

    def sums(self, outputs, targets, weights):
        labels, (boxes, box_mask) = targets["label"], targets["regions"]
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs["logits"])
        count = tf.maximum(tf.reduce_sum(box_mask, axis=1, keepdims=True), 1)
        mean = tf.reduce_sum(boxes * box_mask[..., None], axis=1) / count
        box_loss = tf.reduce_sum((outputs["box"] - mean) ** 2, axis=-1)
        right = tf.argmax(outputs["logits"], axis=1, output_type=tf.int32) == labels
        terms = {
            "loss": entropy + 0.5 * box_loss,
            "cross_entropy": entropy,
            "box_loss": box_loss,
            "accuracy": tf.cast(right, tf.float32),
        }
        return {name: tf.reduce_sum(term * weights) for name, term in terms.items()}

    def row_weights(self, inputs, weights):
        return weights[:, None] * inputs["mask"]

    def gradients(self, network, inputs, targets, weights, scale):
        if self._passes == 1:
            return super().gradients(network, inputs, targets, weights, scale)
        embed, head = network.get_layer("embed"), network.get_layer("head")
        # The first pass keeps no activations; the second repeats it chunk by chunk.
        embedded = embed(inputs["instances"], training=True)
        with tf.GradientTape() as tape:
            tape.watch(embedded)
            sums = self.sums(head([embedded, inputs["mask"]], training=True), targets, weights)
            loss = scale(sums["loss"])
        of_embedded, of_head = tape.gradient(
            loss, [embedded, [weight.value for weight in head.trainable_variables]]
        )
        totals = [tf.zeros_like(weight.value) for weight in embed.trainable_variables]
        size = tf.shape(embedded)[1]
        for start in tf.range(0, size, CHUNK):
            end = tf.minimum(start + CHUNK, size)
            with tf.GradientTape() as tape:
                part = embed(inputs["instances"][:, start:end], training=True)
            chunk = tape.gradient(
                part,
                [weight.value for weight in embed.trainable_variables],
                output_gradients=of_embedded[:, start:end],
            )
            totals = [total + gradient for total, gradient in zip(totals, chunk, strict=True)]
        by_path = {
            weight.path: gradient
            for weights_of, gradients in (
                (embed.trainable_variables, totals),
                (head.trainable_variables, of_head),
            )
            for weight, gradient in zip(weights_of, gradients, strict=True)
        }
        return sums, [by_path[weight.path] for weight in network.trainable_variables]

    def describe_data(self, reader):
        return f"{len(reader)} bags"

    def settings(self):
        return {
            "bags": {
                "padding": self._padding,
                "passes": self._passes,
                "normalised": self._normalised,
            }
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--padding", type=int, default=0)
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--normalised", type=int, default=0)
    args = parser.parse_args()
    settings = TrainSettings(epochs=3, batch_size=8, ranks_per_node=args.ranks, learning_rate=0.02)
    task = Bags(args.padding, args.passes, args.normalised)
    with join_ranks(args.ranks, 60) as ranks:
        loop.train(
            args.manifest, settings, task, args.out / "checkpoints", args.out / "segments", ranks,
            log=lambda line: print(line, flush=True),
        )  # fmt: skip
