"""Train a few steps with every rank on data of its own; each rank prints a digest of its weights.

`--reduce operations` goes through the project's own step. `--reduce wrapper` replaces its
reduction by Horovod's optimizer wrapper for Keras, as a newcomer would write it.
"""

import argparse
import hashlib
from pathlib import Path

import numpy as np

from gigatile.settings import TrainSettings
from gigatile.training.ranks import Ranks, join

parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("--reduce", choices=("operations", "wrapper"), required=True)
args = parser.parse_args()

ranks = join()

from gigatile.training.classification import Classification  # noqa: E402
from gigatile.training.models import build_model  # noqa: E402

settings = TrainSettings(ranks=ranks.size, batch_size=8 * ranks.size, seed=ranks.rank)
model = build_model(settings, 32, 3)


class Alone(Ranks):
    """Ranks whose gradients are left to somebody else."""

    def sum_gradients(self, gradients):
        return list(gradients)


alone = Alone(ranks.rank, ranks.size, ranks.threads)
task = Classification(model, settings, ranks if args.reduce == "operations" else alone)
if args.reduce == "wrapper":
    import horovod.tensorflow.keras as hvd_keras

    task._optimizer = hvd_keras.DistributedOptimizer(task._optimizer)
ranks.same_everywhere(task.variables, "initial")

random = np.random.default_rng(100 + ranks.rank)
for _ in range(3):
    images = random.integers(0, 255, (8, 32, 32, 3), np.uint8)
    labels = random.integers(0, 3, 8).astype(np.int32)
    task.step(images, labels, np.ones(8, np.float32), np.float32(8 * ranks.size))
# A file per rank: what two ranks print can be mixed within a line.
digest = hashlib.sha256(b"".join(np.array(v).tobytes() for v in model.variables)).hexdigest()
(args.out / f"rank-{ranks.rank}").write_text(digest)
