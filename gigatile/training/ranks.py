"""The ranks of a training and their collective operations.

Only Horovod's operations are used, and only in this module. Its Keras wrappers do not work with
Keras 3: `DistributedOptimizer` never reduces a gradient, without an error.
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
    """This process and its collective operations.

    Attributes:
        rank: number of this process, 0 … size - 1. Only rank 0 writes files.
        size: number of processes.
        threads: number of cores of this process: for TensorFlow, and again for decoding samples.
        watchdog: ends the process when it waits too long; None: none.
    """

    rank: int
    size: int
    threads: int
    watchdog: Watchdog | None = None

    @property
    def writes(self) -> bool:
        """Whether this rank writes files and progress."""
        return self.rank == 0

    @property
    def name(self) -> str:
        """The name of this rank in messages."""
        return f"rank {self.rank} of {self.size} on {socket.gethostname()}"

    def report_progress(self, where: str) -> None:
        """Report to the watchdog that this rank made progress, and where it is."""
        if self.watchdog:
            self.watchdog.report_progress(where)

    def stop_watchdog(self) -> None:
        """Stop the watchdog: from here on, no rank waits for another."""
        if self.watchdog:
            self.watchdog.stop()

    def sum_in_step(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the sum of each tensor over all ranks, as one fused allreduce in a graph."""
        return hvd.grouped_allreduce(list(values), op=hvd.Sum, name="step")

    def gather_in_step(self, values: tf.Tensor, name: str) -> tf.Tensor:
        """Return the tensors of all ranks, which have equal shapes, in a graph: (size, …).

        The gradient is the sum over all ranks of the gradients of this rank's tensor. Horovod's own
        gradient would exchange the sizes once more.
        """
        # Horovod matches operations of ranks by their names in the graph. The scope excludes Keras'
        # layer names, which depend on the number of layers that a process has created.
        scope = "ranks/"

        @tf.custom_gradient
        def gather(tensor: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            def back(upstream: tf.Tensor) -> tf.Tensor:
                with tf.name_scope(scope):
                    return hvd.allreduce(upstream, op=hvd.Sum, name=f"{name}/back")[self.rank]

            with tf.name_scope(scope):
                return hvd.allgather(tensor[None], name=name), back

        return tf.ensure_shape(gather(values), (self.size, *values.shape))

    def sum(self, values: np.ndarray, name: str) -> np.ndarray:
        """Return the sum of an array over all ranks; equal on all of them."""
        return hvd.allreduce(tf.constant(values), op=hvd.Sum, name=name).numpy()

    def mean(self, values: np.ndarray, name: str) -> np.ndarray:
        """Return the float64 mean of an array over all ranks; equal on all of them."""
        return self.sum(np.asarray(values, np.float64), name) / self.size

    def gather(self, values: np.ndarray, name: str) -> np.ndarray:
        """Return the arrays of all ranks, which have equal shapes, in rank order: (size, …)."""
        return hvd.allgather(tf.constant(values[None]), name=name).numpy()

    def broadcast(self, values: np.ndarray, name: str) -> np.ndarray:
        """Return the array of rank 0; the other ranks pass one of the same shape and dtype."""
        return hvd.broadcast(tf.constant(values), root_rank=0, name=name).numpy()

    def broadcast_variables(self, variables: Sequence, name: str) -> None:
        """Assign the values of rank 0 to the variables of all ranks.

        Names of Keras variables are not unique (`kernel`, `bias`), so they are numbered.
        """
        for number, variable in enumerate(variables):
            value = hvd.broadcast(variable.value, root_rank=0, name=f"{name}/{number}")
            variable.assign(value)
