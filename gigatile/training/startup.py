"""Start a rank, assign it a GPU and cores, and end it.

No rank may leave the others waiting, and the launcher must report the error of the first rank that
failed.
"""

import contextlib
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from gigatile.errors import START_AGAIN, StartAgain, describe_error
from gigatile.parallel.interruption import (
    SIGNALS,
    Watchdog,
    announce_exit,
    exit_now,
    received_signals,
)
from gigatile.parallel.world import disable_munge
from gigatile.training import cores as cpus
from gigatile.training.ranks import Ranks

# Seconds that the other ranks wait, so that the launcher sees the rank that failed first.
EXIT_DELAY = 5.0


@contextlib.contextmanager
def join_ranks(cores: int, stall_limit: int, tree: Path = cpus.TREE) -> Iterator[Ranks]:
    """Join the ranks of this MPI launch for the block, with one GPU per rank if there are any.

    Deterministic ops of TensorFlow are enabled. If the block raises, the process exits here: with
    a user error, as a bug, or for `StartAgain`, which every rank must raise at the same step. No
    rank is left waiting.

    Args:
        cores: maximum number of cores of this rank.
        stall_limit: abort after this many seconds of waiting for other ranks.
        tree: the kernel's description of the NUMA nodes.

    Raises:
        StartAgain: a signal came before the ranks had joined.
    """
    for number, came in zip(SIGNALS, received_signals(), strict=True):
        if came:
            raise StartAgain(f"stopped by {number.name} before the training began")
    # Horovod's own check aborts ranks that wait in different collectives while MPI still works. It
    # warns first, and its shutdown time must be longer than its warning time.
    os.environ["HOROVOD_STALL_CHECK_TIME_SECONDS"] = str(max(1, stall_limit // 5))
    os.environ["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] = str(stall_limit)
    disable_munge()
    again = "training will resume from the latest checkpoint"
    watchdog = Watchdog(stall_limit, f"a rank on {socket.gethostname()}", again)
    hvd.init()
    ranks = Ranks(hvd.rank(), hvd.size(), 1, watchdog)
    watchdog.name = ranks.name
    try:
        yield Ranks(ranks.rank, ranks.size, _assign_devices(cores, tree), watchdog)
    except Exception as error:
        _leave(ranks, error)


def _assign_devices(cores: int, tree: Path) -> int:
    """Assign one GPU and cores to this rank; return the number of cores."""
    # Horovod has initialised MPI; importing this earlier would initialise it differently.
    from mpi4py import MPI

    own = os.sched_getaffinity(0)
    # Not with Horovod's ops: the first of them starts TensorFlow's threads.
    on_machine = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED).allgather(own)
    threads = min(cores, cpus.core_share(own, on_machine))
    if not cpus.bound_by_launcher(own, on_machine):
        nodes = cpus.numa_nodes(own, tree)
        node = cpus.node_of_rank(nodes, hvd.local_rank(), hvd.local_size(), threads)
        if node is not None:
            cpus.bind(node)
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        chosen = gpus[hvd.local_rank() % len(gpus)]
        tf.config.set_visible_devices(chosen, "GPU")
        tf.config.experimental.set_memory_growth(chosen, True)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.experimental.enable_op_determinism()
    return threads


def _leave(ranks: Ranks, error: Exception) -> NoReturn:
    """End this process because of an error, and the other ranks with it."""
    if isinstance(error, StartAgain):
        # The first rank to exit makes the launcher end the others: rank 0 must print first.
        if ranks.writes:
            print(error, file=sys.stderr, flush=True)
        ranks.sum(np.zeros(1), "leave")
        hvd.shutdown()
        exit_now(ranks.name, START_AGAIN)
    who = f" ({ranks.name})" if ranks.size > 1 else ""
    if _another_ended(error):
        print(f"stopped{who}: another rank ended; see its message", file=sys.stderr, flush=True)
        # Let the launcher see the status of the rank that failed first.
        time.sleep(EXIT_DELAY)
        exit_now(ranks.name, START_AGAIN)
    message = describe_error(error)
    if not ranks.writes:
        # If all ranks fail alike, rank 0 prints the error and ends the others before they do.
        time.sleep(1)
    if message is None:
        sys.stderr.write(f"a bug{who}:\n" + "".join(traceback.format_exception(error)))
    else:
        sys.stderr.write(f"error{who}: {message}\n")
    status = 1 if message is None else 2
    if ranks.size > 1:
        # Abort may hang if the network is down.
        fallback = threading.Timer(EXIT_DELAY, os._exit, [status])
        fallback.daemon = True
        fallback.start()
        sys.stderr.flush()
        announce_exit(ranks.name, status)
        from mpi4py import MPI

        # The only way that makes every launcher end the ranks on all machines at once.
        MPI.COMM_WORLD.Abort(status)
    exit_now(ranks.name, status)


def _another_ended(error: Exception) -> bool:
    """Return whether a collective failed because another rank is gone, not because of its input."""
    return isinstance(error, tf.errors.UnknownError | tf.errors.AbortedError) and (
        "Horovod" in str(error)
    )
