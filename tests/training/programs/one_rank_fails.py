"""Let rank 1 exit in a given way while rank 0 waits for it."""

import os
import signal
import sys

import horovod.tensorflow as hvd
import numpy as np

from gigatile.errors import UserError
from gigatile.training.startup import join_ranks

with join_ranks(cores=1, stall_limit=60) as ranks:
    ranks.sum(np.zeros(1), "together")
    if ranks.rank == 1:
        match sys.argv[1]:
            case "bug":
                raise RuntimeError("rank 1 fails")
            case "mistake":
                raise UserError("rank 1 has read nonsense")
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "leave":
                hvd.shutdown()
                os._exit(0)
    ranks.sum(np.zeros(1), "alone")
