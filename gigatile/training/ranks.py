"""The processes that train together: who this one is, and what they say to each other.

Horovod's Keras wrappers do not fit Keras 3: one of them never reduces a gradient and says nothing.
Only Horovod's operations are used, here and nowhere else.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

# A collective that some rank never joins would wait for ever; after this it is an error.
os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", "60")
os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "300")

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class Ranks:
    """This process among all.

    Attributes:
        rank: its number, 0 … size - 1. Rank 0 writes; the others don't.
        size: how many processes train together.
        threads: cores that this process may use.
    """

    rank: int
    size: int
    threads: int

    @property
    def writes(self) -> bool:
        """Whether this rank is the one that writes files and progress."""
        return self.rank == 0

    def sum_gradients(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the sum of each gradient over all ranks, as one fused reduction."""
        return hvd.grouped_allreduce(list(gradients), op=hvd.Sum, name="gradients")

    def sum(self, values: np.ndarray, name: str) -> np.ndarray:
        """Return the sum of an array over all ranks, the same on each."""
        return hvd.allreduce(tf.constant(values), op=hvd.Sum, name=name).numpy()

    def same_everywhere(self, variables: Sequence, name: str) -> None:
        """Give every rank the values that rank 0 has.

        Keras names variables alike (`kernel`, `bias`), so each is sent under a name of its own.
        """
        for number, variable in enumerate(variables):
            value = hvd.broadcast(variable.value, root_rank=0, name=f"{name}/{number}")
            variable.assign(value)

    def average(self, variables: Sequence, name: str) -> None:
        """Replace each variable by its mean over all ranks."""
        for number, variable in enumerate(variables):
            mean = hvd.allreduce(variable.value, op=hvd.Average, name=f"{name}/{number}")
            variable.assign(mean)


def join() -> Ranks:
    """Join the other processes of this MPI launch; take one GPU where there are any.

    Results do not depend on chance: TensorFlow's deterministic operations are on.
    """
    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        mine = gpus[hvd.local_rank() % len(gpus)]
        tf.config.set_visible_devices(mine, "GPU")
        tf.config.experimental.set_memory_growth(mine, True)
    # The cores of this process: what it was bound to, or its part of what all on this host share.
    threads = max(1, len(os.sched_getaffinity(0)) // hvd.local_size())
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.experimental.enable_op_determinism()
    return Ranks(hvd.rank(), hvd.size(), threads)
