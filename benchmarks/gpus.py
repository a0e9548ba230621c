#!/usr/bin/env python3
"""Measure how fast a GPU trains, and how many cores keep it busy.

The training step of the learner gets the same batch again and again, which shows what the GPU can
do. Then it gets tiles as a training reads them, with random views, on 1, 2, 4, … cores; the share
of the time that it is without a batch is what the GPU waits. Forward and backward pass alone are
compared with and without XLA. Without a GPU, everything runs on the processor.
"""

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from inputs.tiles import SIDE, demo_tiles, make_shards

CLASSES, CHANNELS, LABELS = 3, 4, 3
PRECISIONS = ("off", "float16", "bfloat16")
FED_WITH = "bfloat16"


class Training:
    """A network with its training step."""

    def __init__(self, settings, network, task, ranks) -> None:
        from gigatile.training.learner import Learner

        self.network = network
        self._learner = Learner(network, task, settings, ranks)

    def step(self, batch, inputs) -> None:
        self._learner.step(batch, inputs, np.zeros(3, np.float32), 1e-4)

    def passes(self, inputs, xla: bool) -> Callable[[], object]:
        """Return forward and backward pass alone."""
        import tensorflow as tf

        network = self.network

        def gradients(shown: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.cast(network(shown, training=True), tf.float32) ** 2)
            return tape.gradient(loss, network.trainable_variables)

        graph = tf.function(gradients, jit_compile=xla)
        shown = tf.cast(inputs, tf.float32)
        return lambda: float(tf.reduce_sum(graph(shown)[0]))


def of_tiles(model: str, precision: str, batch: int, ranks) -> Training:
    from gigatile.models.classifier import build_classifier
    from gigatile.settings.tiles import TileSettings
    from gigatile.settings.train import TrainSettings
    from gigatile.tasks.tile_classification.training import TileClassification

    settings = TrainSettings(
        model=model, ranks_per_node=1, batch_size=batch, mixed_precision=precision
    )
    network = build_classifier(settings, SIDE, CLASSES).trained
    return Training(settings, network, TileClassification(TileSettings()), ranks)


def of_volumes(model: str, precision: str, side: int, batch: int, ranks) -> Training:
    from gigatile.models import load_builder
    from gigatile.settings.patches import PatchSettings
    from gigatile.settings.train import TrainSettings
    from gigatile.settings.volumes import VolumeSettings
    from gigatile.tasks.volume_segmentation.training import VolumeSegmentation
    from gigatile.volumes.targets import Targets

    settings = TrainSettings(
        model=model, ranks_per_node=1, batch_size=batch, mixed_precision=precision
    )
    patches = PatchSettings(size=(side, side, side))
    volumes = VolumeSettings(labels="decathlon")
    targets = Targets(volumes, patches)
    build = load_builder(model)
    network = build(settings, patches.size, CHANNELS, targets.outputs, targets.activation).trained
    return Training(settings, network, VolumeSegmentation(volumes, patches), ranks)


def random_batch(shape: tuple[int, ...], targets: tuple[int, ...], kind: type):
    """Return a batch of random values, and its inputs as a tensor."""
    import tensorflow as tf

    from gigatile.training.batches import Batch

    random = np.random.default_rng(0)
    if kind is np.uint8:
        inputs = random.integers(0, 255, shape, np.uint8)
    else:
        inputs = random.standard_normal(shape, np.float32)
    labels = random.integers(0, LABELS, targets).astype(np.int32 if len(targets) == 1 else np.uint8)
    batch = Batch(inputs, labels, np.ones(len(inputs), np.float32), len(inputs), 0, 0)
    return batch, tf.convert_to_tensor(inputs)


def median_seconds(step: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Return the median seconds of a step, and those of the first one."""
    seconds = []
    for _ in range(rounds + 3):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[3:]), seconds[0]


def fed(training: Training | None, manifest: Path, batch: int, cores: int) -> tuple[float, float]:
    """Return tiles per second of an epoch read on so many cores, and the share of time waited."""
    import tensorflow as tf

    from gigatile.records.shards import ShardReader
    from gigatile.tasks.tile_classification.samples import Tiles
    from gigatile.training.batches import batches
    from gigatile.training.sample_order import Epoch, Sampling

    reader = ShardReader(manifest, "train")
    epoch = Epoch(Sampling(reader.counts, 1, len(reader.counts)), 0, reader.classes_of)
    steps, warm = len(epoch) // batch, 2
    waited = 0.0
    loaded = batches(Tiles(reader), epoch, batch, 0, 1, threads=cores, steps=range(steps))
    for number in range(steps):
        if number == warm:
            start, waited = time.perf_counter(), 0.0
        before = time.perf_counter()
        current = next(loaded)
        waited += time.perf_counter() - before
        if training:
            training.step(current, tf.convert_to_tensor(current.inputs))
    seconds = time.perf_counter() - start
    reader.close()
    return (steps - warm) * batch / seconds, waited / seconds


def measure(args: argparse.Namespace, ranks) -> None:
    import tensorflow as tf

    if args.not_deterministic:
        from tensorflow.python.framework.config import disable_op_determinism

        disable_op_determinism()
    gpus = tf.config.get_visible_devices("GPU")
    name = "the processor"
    if gpus:
        name = tf.config.experimental.get_device_details(gpus[0]).get("device_name", "a GPU")
    print(
        f"TensorFlow {tf.__version__} on {name}, {ranks.threads} cores,"
        f" {'not ' * args.not_deterministic}deterministic"
    )

    tiles, images = random_batch((args.batch_size, SIDE, SIDE, 3), (args.batch_size,), np.uint8)
    rates = {}
    for precision in PRECISIONS:
        training = of_tiles(args.model, precision, args.batch_size, ranks)
        step, first = median_seconds(lambda t=training: t.step(tiles, images), args.rounds)
        rates[precision] = args.batch_size / step
        print(
            f"{args.model}, {SIDE} px, mixed_precision {precision}: {rates[precision]:.0f} tiles/s"
            f" ({rates[precision] / rates['off']:.2f} of off; first step {first:.0f} s)"
        )
    for xla in (False, True):
        try:
            alone, first = median_seconds(training.passes(images, xla), args.rounds)
        except tf.errors.UnimplementedError as error:
            print(f"  forward and backward alone, with XLA: {str(error).splitlines()[0]}")
            break
        print(
            f"  forward and backward alone, {'with' if xla else 'without'} XLA:"
            f" {args.batch_size / alone:.0f} tiles/s (first {first:.0f} s)"
        )

    with tempfile.TemporaryDirectory() as folder:
        manifest = make_shards(demo_tiles(), args.tiles, 32, Path(folder))
        training = of_tiles(args.model, FED_WITH, args.batch_size, ranks)
        training.step(tiles, images)
        cores = 1
        while cores <= ranks.threads:
            read, _ = fed(None, manifest, args.batch_size, cores)
            trained, waits = fed(training, manifest, args.batch_size, cores)
            print(
                f"  {cores} cores: read {read:.0f} tiles/s; trained {trained:.0f} tiles/s,"
                f" {trained / rates[FED_WITH]:.2f} of the step alone, waits {waits:.0%}"
            )
            if cores == 1:
                each = read
            cores *= 2
        for precision, rate in rates.items():
            print(f"  cores that feed it with {precision}: {math.ceil(rate / each)}")

    size = (args.patches, *[args.side] * 3)
    patches, volumes = random_batch((*size, CHANNELS), size, np.float32)
    for precision in PRECISIONS:
        training = of_volumes(args.volume_model, precision, args.side, args.patches, ranks)
        step, first = median_seconds(
            lambda t=training: t.step(patches, volumes), max(3, args.rounds // 4)
        )
        if precision == "off":
            single = step
        print(
            f"{args.volume_model}, {args.patches} patches of {args.side}³, mixed_precision"
            f" {precision}: {args.patches / step:.2f} patches/s ({single / step:.2f} of off;"
            f" first step {first:.0f} s)"
        )
        if gpus:
            peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
            print(f"  at most {peak / 1e9:.1f} GB so far")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--volume-model", default="unet")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--tiles", type=int, default=16384)
    parser.add_argument("--side", type=int, default=128, help="of a patch, in voxels")
    parser.add_argument("--patches", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--not-deterministic", action="store_true", help="as no training of Gigatile runs"
    )
    args = parser.parse_args()
    if args.tiles < 4 * args.batch_size:
        parser.error("--tiles: at least four batches are needed")
    sys.stdout.reconfigure(line_buffering=True)
    from gigatile.training.startup import join_ranks

    with join_ranks(len(os.sched_getaffinity(0)), 600) as ranks:
        measure(args, ranks)


if __name__ == "__main__":
    main()
