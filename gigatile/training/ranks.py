"""The processes that train together: who this one is, and what they say to each other.

Horovod's Keras wrappers do not fit Keras 3: one of them never reduces a gradient and says nothing.
Only Horovod's operations are used, here and nowhere else.
"""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from gigatile.parallel.interruption import Watchdog


@dataclass(frozen=True)
class Ranks:
    """This process among all.

    Attributes:
        rank: its number, 0 … size - 1. Rank 0 writes; the others don't.
        size: how many processes train together.
        threads: cores that this process uses, for its arithmetic and again to decode tiles.
        watchdog: ends the process when it waits too long; None: nothing does.
    """

    rank: int
    size: int
    threads: int
    watchdog: Watchdog | None = None

    @property
    def writes(self) -> bool:
        """Whether this rank is the one that writes files and progress."""
        return self.rank == 0

    @property
    def name(self) -> str:
        """What this rank is called in messages."""
        return f"rank {self.rank} of {self.size} on {socket.gethostname()}"

    def report_progress(self, where: str) -> None:
        """Tell the watchdog that this rank got on, and where it is."""
        if self.watchdog:
            self.watchdog.report_progress(where)

    def wait_no_more(self) -> None:
        """Say that what comes now may take its time: no rank waits for another any more."""
        if self.watchdog:
            self.watchdog.stop()

    def sum_in_step(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the sum of each tensor over all ranks, as one fused reduction within a graph."""
        return hvd.grouped_allreduce(list(values), op=hvd.Sum, name="step")

    def gather_in_step(self, values: tf.Tensor, name: str) -> tf.Tensor:
        """Return the tensors of all ranks, of one shape, within a graph: (size, …).

        Its gradient is the sum of what all ranks send back for this rank's tensor. Horovod's own
        asks for the sizes once more.
        """
        # Horovod matches the ranks' operations by their names in the graph. The scope keeps Keras'
        # layer names out of them, which count how many layers a process has made.
        scope = "ranks/"

        @tf.custom_gradient
        def gather(mine: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            def back(upstream: tf.Tensor) -> tf.Tensor:
                with tf.name_scope(scope):
                    return hvd.allreduce(upstream, op=hvd.Sum, name=f"{name}/back")[self.rank]

            with tf.name_scope(scope):
                return hvd.allgather(mine[None], name=name), back

        found = gather(values)
        return tf.ensure_shape(found, (self.size, *values.shape))

    def sum(self, values: np.ndarray, name: str) -> np.ndarray:
        """Return the sum of an array over all ranks, the same on each."""
        return hvd.allreduce(tf.constant(values), op=hvd.Sum, name=name).numpy()

    def mean(self, values: np.ndarray, name: str) -> np.ndarray:
        """Return the mean of an array over all ranks, in double precision, the same on each."""
        return self.sum(np.asarray(values, np.float64), name) / self.size

    def gather(self, values: np.ndarray, name: str) -> np.ndarray:
        """Return the arrays of all ranks, of one shape, in the order of the ranks: (size, …)."""
        return hvd.allgather(tf.constant(values[None]), name=name).numpy()

    def from_first(self, values: np.ndarray, name: str) -> np.ndarray:
        """Return the array that rank 0 has; the others give one of the same shape and type."""
        return hvd.broadcast(tf.constant(values), root_rank=0, name=name).numpy()

    def same_everywhere(self, variables: Sequence, name: str) -> None:
        """Give every rank the values that rank 0 has.

        Keras names variables alike (`kernel`, `bias`), so each is sent under a name of its own.
        """
        for number, variable in enumerate(variables):
            value = hvd.broadcast(variable.value, root_rank=0, name=f"{name}/{number}")
            variable.assign(value)
