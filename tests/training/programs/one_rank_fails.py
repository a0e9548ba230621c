"""Rank 1 raises while rank 0 waits for it."""

import numpy as np

from gigatile.training.ranks import join

ranks = join()
ranks.sum(np.zeros(1), "together")
if ranks.rank == 1:
    raise RuntimeError("rank 1 has had enough")
ranks.sum(np.zeros(1), "alone")
