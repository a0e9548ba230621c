"""Train a few steps with every rank on data of its own; each rank prints a digest of its weights.

`--reduce operations` goes through the project's own step. `--reduce wrapper` replaces its
reduction by Horovod's optimizer wrapper for Keras, as a newcomer would write it.
"""

import argparse
import hashlib
import json
import os
from pathlib import Path

import numpy as np

from gigatile.settings.train import TrainSettings
from gigatile.training.cores import THREADS, TREE
from gigatile.training.joining import join
from gigatile.training.ranks import Ranks

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("--reduce", choices=("operations", "wrapper"), required=True)
parser.add_argument("--tree", type=Path, default=TREE, help="the machine's NUMA nodes")
args = parser.parse_args()


class Alone(Ranks):
    """Ranks whose gradients are left to somebody else."""

    def sum_in_step(self, values):
        return list(values)


def train(ranks: Ranks) -> str:
    import keras

    from gigatile.settings.tiles import TileSettings
    from gigatile.training.classification import Classification
    from gigatile.training.learner import Learner
    from gigatile.training.models import LOGITS, build_model

    settings = TrainSettings(ranks_per_node=ranks.size, batch_size=8 * ranks.size, seed=ranks.rank)
    model = build_model(settings, 32, 3)
    alone = Alone(ranks.rank, ranks.size, ranks.threads)
    trained = keras.Model(model.input, model.get_layer(LOGITS).output)
    sums = Classification(TileSettings()).sums
    learner = Learner(trained, sums, settings, ranks if args.reduce == "operations" else alone)
    if args.reduce == "wrapper":
        import horovod.tensorflow.keras as hvd_keras

        learner._optimizer = hvd_keras.DistributedOptimizer(learner._optimizer)
    ranks.same_everywhere(learner.variables, "initial")

    random = np.random.default_rng(100 + ranks.rank)
    for step in range(3):
        images = random.integers(0, 255, (8, 32, 32, 3), np.uint8)
        labels = random.integers(0, 3, 8).astype(np.int32)
        wishes = np.array([step == 2, ranks.rank == 1, 0], np.float32)
        total = np.float32(8 * ranks.size)
        *_, agreed, _ = learner.step(images, labels, np.ones(8, np.float32), total, wishes)
    if args.reduce == "operations":
        mean = ranks.mean(np.array([ranks.rank, 3.0]), "mean")
        np.testing.assert_array_equal(mean, [(ranks.size - 1) / 2, 3.0])
        np.testing.assert_array_equal(agreed, [ranks.size, 1, 0])
    return hashlib.sha256(b"".join(np.array(v).tobytes() for v in model.variables)).hexdigest()


with join(cores=8, stall_limit=60, tree=args.tree) as ranks:
    # A file per rank: what two ranks print can be mixed within a line.
    (args.out / f"rank-{ranks.rank}").write_text(train(ranks))
    places = {str(os.sched_getaffinity(int(path.name))) for path in THREADS.iterdir()}
    described = {"threads": ranks.threads, "places": sorted(places)}
    (args.out / f"cores-{ranks.rank}").write_text(json.dumps(described))
