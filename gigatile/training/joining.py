"""How a process joins those that train together, takes its place on its machine, and ends.

None may leave another waiting, and what the launcher learns is why the first one ended.
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
from gigatile.parallel.world import leave_munge_out
from gigatile.training import cores as cpus
from gigatile.training.ranks import Ranks

# Seconds in which the launcher hears of the rank that failed before another one leaves for it.
AFTER_THE_FIRST = 5.0


@contextlib.contextmanager
def join(cores: int, stall_limit: int, tree: Path = cpus.TREE) -> Iterator[Ranks]:
    """Join the other processes of this MPI launch for the block; take one GPU where there are any.

    Results do not depend on chance: TensorFlow's deterministic operations are on. How the block
    ends decides how the process does, and it ends here, not in its caller: as a user's error, a
    bug, or `StartAgain`, which every rank must raise at the same point. No rank is left waiting.

    Args:
        cores: that this rank may use; fewer where it shares fewer with the others.
        stall_limit: seconds after which a rank that waits for the others ends.
        tree: the kernel's description of the machine's NUMA nodes.

    Raises:
        StartAgain: a signal came before the processes had joined.
    """
    for number, came in zip(SIGNALS, received_signals(), strict=True):
        if came:
            raise StartAgain(f"stopped by {number.name} before the training began")
    # Horovod's own check ends ranks that reach different collectives while MPI still works. It
    # warns first, and only shuts down later than it warns.
    os.environ["HOROVOD_STALL_CHECK_TIME_SECONDS"] = str(max(1, stall_limit // 5))
    os.environ["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] = str(stall_limit)
    leave_munge_out()
    again = "the training goes on from the newest checkpoint"
    watchdog = Watchdog(stall_limit, f"a rank on {socket.gethostname()}", again)
    hvd.init()
    ranks = Ranks(hvd.rank(), hvd.size(), 1, watchdog)
    watchdog.name = ranks.name
    try:
        yield Ranks(ranks.rank, ranks.size, _settle(cores, tree), watchdog)
    except Exception as error:
        _leave(ranks, error)


def _settle(cores: int, tree: Path) -> int:
    """Take this rank's place on its machine, one GPU and its cores; return how many cores."""
    # MPI is up already, by Horovod; to import this earlier would start it in another way.
    from mpi4py import MPI

    mine = os.sched_getaffinity(0)
    # Not through Horovod's operations: with the first of them TensorFlow starts its threads.
    neighbours = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED).allgather(mine)
    threads = min(cores, cpus.share(mine, neighbours))
    if not cpus.bound_by_launcher(mine, neighbours):
        nodes = cpus.numa_nodes(mine, tree)
        node = cpus.home(nodes, hvd.local_rank(), hvd.local_size(), threads)
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
    """End this process for an error, and the others with it."""
    if isinstance(error, StartAgain):
        # Whoever leaves first has the launcher end the rest: not before rank 0 has spoken.
        if ranks.writes:
            print(error, file=sys.stderr, flush=True)
        ranks.sum(np.zeros(1), "leave")
        hvd.shutdown()
        exit_now(ranks.name, START_AGAIN)
    who = f" ({ranks.name})" if ranks.size > 1 else ""
    if _another_ended(error):
        print(f"stopped{who}: another rank ended; see its message", file=sys.stderr, flush=True)
        # The status of the first one is the launcher's, if it has the time to see it.
        time.sleep(AFTER_THE_FIRST)
        exit_now(ranks.name, START_AGAIN)
    message = describe_error(error)
    if not ranks.writes:
        # What befalls all ranks is told once: rank 0 ends the others before they repeat it.
        time.sleep(1)
    if message is None:
        sys.stderr.write(f"a bug{who}:\n" + "".join(traceback.format_exception(error)))
    else:
        sys.stderr.write(f"error{who}: {message}\n")
    status = 1 if message is None else 2
    if ranks.size > 1:
        # A cut network may hold this up, too.
        fallback = threading.Timer(AFTER_THE_FIRST, os._exit, [status])
        fallback.daemon = True
        fallback.start()
        sys.stderr.flush()
        announce_exit(ranks.name, status)
        from mpi4py import MPI

        # The one way in which every launcher ends the ranks of all machines at once.
        MPI.COMM_WORLD.Abort(status)
    exit_now(ranks.name, status)


def _another_ended(error: Exception) -> bool:
    """Say whether a collective failed because a rank is gone, and not for what it was given."""
    return isinstance(error, tf.errors.UnknownError | tf.errors.AbortedError) and (
        "Horovod" in str(error)
    )
