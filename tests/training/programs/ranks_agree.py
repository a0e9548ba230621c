"""Train a few steps with different data on each rank; write a digest of each rank's weights.

`--reduce operations` uses the training step of the library. `--reduce wrapper` replaces its
reduction by Horovod's optimizer wrapper for Keras.
"""

import argparse
import contextlib
import hashlib
import json
import os
from pathlib import Path

import numpy as np

from gigatile.settings.train import TrainSettings
from gigatile.training.cores import THREADS, TREE
from gigatile.training.ranks import Ranks
from gigatile.training.startup import join_ranks

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("--reduce", choices=("operations", "wrapper"), required=True)
parser.add_argument("--tree", type=Path, default=TREE, help="the machine's NUMA nodes")
args = parser.parse_args()


class Alone(Ranks):
    """Ranks that do not sum their gradients."""

    def sum_in_step(self, values):
        return list(values)


def train(ranks: Ranks) -> str:
    from gigatile.models.classifier import build_classifier
    from gigatile.settings.tiles import TileSettings
    from gigatile.tasks.tile_classification.training import TileClassification
    from gigatile.training.batches import Batch
    from gigatile.training.learner import Learner, check_network

    settings = TrainSettings(ranks_per_node=ranks.size, batch_size=8 * ranks.size, seed=ranks.rank)
    networks = build_classifier(settings, 32, 3)
    alone = Alone(ranks.rank, ranks.size, ranks.threads)
    task = TileClassification(TileSettings())
    summing = ranks if args.reduce == "operations" else alone
    learner = Learner(networks.trained, task, settings, summing)
    if args.reduce == "wrapper":
        import horovod.tensorflow.keras as hvd_keras

        optimizer = learner._optimizer
        optimizer._optimizer = hvd_keras.DistributedOptimizer(optimizer._optimizer)
    ranks.broadcast_variables(learner.variables, "initial")

    random = np.random.default_rng(100 + ranks.rank)
    for step in range(3):
        images = random.integers(0, 255, (8, 32, 32, 3), np.uint8)
        labels = random.integers(0, 3, 8).astype(np.int32)
        requests = np.array([step == 2, ranks.rank == 1, 0], np.float32)
        batch = Batch(images, labels, np.ones(8, np.float32), 8 * ranks.size, 0, 0)
        agreed = learner.step(batch, images, requests, settings.learning_rate).agreed
    if args.reduce == "operations":
        mean = ranks.mean(np.array([ranks.rank, 3.0]), "mean")
        np.testing.assert_array_equal(mean, [(ranks.size - 1) / 2, 3.0])
        np.testing.assert_array_equal(agreed, [ranks.size, 1, 0])
        check_network(networks.trained, ranks)
        with contextlib.suppress(ValueError):
            check_network(build_classifier(settings, 32, 3 + ranks.rank).trained, ranks)
            raise AssertionError("the ranks have different layers")
    return hashlib.sha256(
        b"".join(np.array(v).tobytes() for v in networks.model.variables)
    ).hexdigest()


with join_ranks(cores=8, stall_limit=60, tree=args.tree) as ranks:
    # A file per rank, as lines printed by two ranks can mix.
    (args.out / f"rank-{ranks.rank}").write_text(train(ranks))
    cpus = {str(os.sched_getaffinity(int(path.name))) for path in THREADS.iterdir()}
    described = {"threads": ranks.threads, "cpus": sorted(cpus)}
    (args.out / f"cores-{ranks.rank}").write_text(json.dumps(described))
