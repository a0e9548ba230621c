"""Early stopping: segments after the last useful epochs are not trained."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from gigatile.json_models import read_model
from gigatile.settings.train import TrainSettings
from gigatile.training.locking import training_lock
from gigatile.training.ranks import Ranks
from gigatile.training.resuming import LOCK_LIMIT
from gigatile.training.segments import Segment, ValidationRecord, repeat_segment, stops_early


def ended_early(
    validated: Sequence[Path],
    segment: Segment,
    checkpoints: Path,
    settings: TrainSettings,
    ranks: Ranks,
    log: Callable[[str], None],
) -> bool:
    """Return whether the training ends before a segment; if so, write the files of the segment.

    All ranks must call it together; rank 0 decides.

    Args:
        validated: the results of all earlier segments.
        segment: the segment to train.
        checkpoints: its folder of checkpoints. Those of a run with more patience are deleted.
        settings: `patience`.
        ranks: the processes that train together.
        log: takes lines of progress.

    Raises:
        UserError: a result is missing or damaged, or a process of another training does not end.
    """
    if settings.patience is None or not validated:
        return False
    ends = np.zeros(1, np.int64)
    if ranks.writes:
        records = [read_model(ValidationRecord, path) for path in validated]
        ends[0] = stops_early(records, settings.patience)
    if not ranks.broadcast(ends, "early stopping")[0]:
        return False
    with training_lock(checkpoints, ranks, settings.stall_limit + LOCK_LIMIT, log):
        if ranks.writes:
            last = Segment(segment.folder, max(int(path.name[:4]) for path in validated))
            stopped_after = repeat_segment(last, segment)
            log(
                f"stopped after epoch {stopped_after}: no better validation in the last "
                f"{settings.patience} epochs (train.patience)"
            )
            shutil.rmtree(checkpoints, ignore_errors=True)
    return True
