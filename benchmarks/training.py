#!/usr/bin/env python3
"""Time a training step against Keras' `fit`, and two ranks against one, with one core per process.

A step of the learner, including the moving average of the weights and the exchange between ranks,
alternates with `keras.Model.fit` of the same model on the same batches, in one process. Then one
rank, two ranks that train together, and two independent processes are started in turn. The slowdown
of independent processes is due to the machine, not to the exchange.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from gigatile.parallel.launch import Layout, environment

ROOT = Path(__file__).parents[1]
SIDE = 224
CLASSES = 3


def learner_of(settings, ranks):
    from gigatile.models.classifier import build_classifier
    from gigatile.settings.tiles import TileSettings
    from gigatile.tasks.tile_classification.training import TileClassification
    from gigatile.training.learner import Learner

    trained = build_classifier(settings, SIDE, CLASSES).trained
    return Learner(trained, TileClassification(TileSettings()), settings, ranks)


def limit_to(core: int) -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    os.sched_setaffinity(0, [core])
    from gigatile.training.cores import limit_pools

    limit_pools(1)


def against_keras(steps: int, rounds: int, batch: int) -> None:
    limit_to(min(os.sched_getaffinity(0)))
    import keras
    import numpy as np
    import tensorflow as tf

    from gigatile.models.classifier import build_classifier
    from gigatile.settings.train import TrainSettings
    from gigatile.training.batches import Batch
    from gigatile.training.startup import join_ranks

    random = np.random.default_rng(0)
    images = random.integers(0, 255, (steps * batch, SIDE, SIDE, 3), np.uint8)
    labels = random.integers(0, CLASSES, steps * batch).astype(np.int32)
    settings = TrainSettings(ranks_per_node=1, batch_size=batch)
    with join_ranks(1, 600) as ranks:
        learner = learner_of(settings, ranks)
        plain = build_classifier(settings, SIDE, CLASSES).model
        plain.compile(
            keras.optimizers.Adam(settings.learning_rate),
            keras.losses.SparseCategoricalCrossentropy(),
            jit_compile=False,
        )
        weights, requests = np.ones(batch, np.float32), np.zeros(3, np.float32)

        def ours() -> None:
            for first in range(0, len(images), batch):
                part = slice(first, first + batch)
                loaded = Batch(images[part], labels[part], weights, batch, 0, 0)
                learner.step(
                    loaded, tf.convert_to_tensor(images[part]), requests, settings.learning_rate
                )

        def fit() -> None:
            plain.fit(images, labels, batch_size=batch, shuffle=False, verbose=0)

        seconds: dict[str, list[float]] = {"ours": [], "fit": []}
        for number in range(rounds + 1):
            for name, run in (("ours", ours), ("fit", fit)):
                start = time.process_time()
                run()
                if number:  # the first round builds the graphs
                    seconds[name].append((time.process_time() - start) / steps)
        for name, values in seconds.items():
            print(f"{name:5} {1000 * statistics.median(values):7.1f} ms of the processor per step")
        ratios = [a / b for a, b in zip(seconds["ours"], seconds["fit"], strict=True)]
        print(f"ours / fit: {statistics.median(ratios):.3f}", flush=True)


def run_rank(core: int, steps: int, batch: int) -> None:
    """Train as one rank on random tiles, and print the seconds per step."""
    limit_to(core)
    import numpy as np
    import tensorflow as tf

    from gigatile.settings.train import TrainSettings
    from gigatile.training.batches import Batch
    from gigatile.training.startup import join_ranks

    with join_ranks(1, 600) as ranks:
        settings = TrainSettings(ranks_per_node=ranks.size, batch_size=batch * ranks.size)
        learner = learner_of(settings, ranks)
        random = np.random.default_rng(ranks.rank)
        images = random.integers(0, 255, (batch, SIDE, SIDE, 3), np.uint8)
        labels = random.integers(0, CLASSES, batch).astype(np.int32)
        weights, requests = np.ones(batch, np.float32), np.zeros(3, np.float32)
        loaded = Batch(images, labels, weights, batch * ranks.size, 0, 0)
        inputs = tf.constant(images)

        def step() -> None:
            learner.step(loaded, inputs, requests, settings.learning_rate)

        for _ in range(3):
            step()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        print(json.dumps((time.perf_counter() - start) / steps), flush=True)


def launch(cores: list[int], steps: int, batch: int) -> subprocess.Popen[str]:
    line = ["mpirun"]
    for number, core in enumerate(cores):
        line += [":"] if number else []
        line += ["-n", "1", sys.executable, str(Path(__file__)), "--rank-on", str(core)]
        line += ["--steps", str(steps), "--batch", str(batch)]
    variables = environment(os.environ, Layout(1, len(cores), 1), None) | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(line, env=variables, stdout=subprocess.PIPE, text=True)


def seconds_of(processes: list[subprocess.Popen[str]]) -> float:
    """Return the seconds per step of the slowest rank."""
    printed = [process.communicate()[0] for process in processes]
    assert not any(process.returncode for process in processes), printed
    return max(float(line) for text in printed for line in text.splitlines())


def ranks_against_one(steps: int, rounds: int, batch: int) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        print("skipped: two ranks need two cores")
        return
    starts: dict[str, list[float]] = {"one": [], "together": [], "independent": []}
    for _ in range(rounds):
        starts["one"].append(seconds_of([launch(cores[:1], steps, batch)]))
        starts["together"].append(seconds_of([launch(cores, steps, batch)]))
        starts["independent"].append(seconds_of([launch([core], steps, batch) for core in cores]))
    step = {name: min(seconds) for name, seconds in starts.items()}
    for name, seconds in step.items():
        print(f"{name:11} {1000 * seconds:7.1f} ms per step, the fastest of {rounds} starts")
    print(f"two ranks / one, same work for each: {step['one'] / step['together']:.3f}")
    print(f"two independent processes / one:     {step['one'] / step['independent']:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16, help="tiles of a rank and step")
    parser.add_argument("--rank-on", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank_on is not None:
        run_rank(args.rank_on, args.steps, args.batch)
        return
    ranks_against_one(args.steps, args.rounds, args.batch)
    against_keras(args.steps, args.rounds, args.batch)


if __name__ == "__main__":
    main()
