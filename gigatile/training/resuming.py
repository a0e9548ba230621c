"""Save the state of a training, and resume from it on all ranks.

A thread writes the checkpoints while training continues: a step only waits for the copy of the
variables.
"""

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gigatile.errors import StartAgain
from gigatile.files import sha256_of
from gigatile.parallel.interruption import SIGNALS, received_signals
from gigatile.settings.train import TrainSettings
from gigatile.training.checkpoints import (
    Checkpoint,
    TrainingState,
    checkpoints_by_step,
    first_usable,
    save_checkpoint,
    write_checkpoint,
)
from gigatile.training.learner import Learner
from gigatile.training.locking import training_lock
from gigatile.training.ranks import Ranks
from gigatile.training.segments import Segment, segment_states

# Increase it when the content of checkpoints changes, so that older ones are skipped.
SCHEMA = 7
# Seconds to wait, after train.stall_limit, for the ranks of another training to end. A rank that
# has lost the others exits after train.stall_limit; the lock of a crashed machine on NFSv4 is
# released after the server's lease, usually 90 s.
LOCK_LIMIT = 120.0


@dataclass
class Position:
    """How far a training is.

    Attributes:
        sums: (1 + metrics + 1,) float64 over this rank's samples of the current epoch: weighted
            loss and metrics, and weights.
        epoch: number of complete epochs.
        step: steps done of the current epoch.
        done: steps done in total.
        history: for each complete epoch its number, loss and metrics. After a restart, rank 0
            alone has the epochs before it.
    """

    sums: np.ndarray
    epoch: int = 0
    step: int = 0
    done: int = 0
    history: list[list[int | float]] = field(default_factory=list)

    def means(self, names: Sequence[str]) -> dict[str, float]:
        """Return the mean loss and metrics by name."""
        *sums, weights = self.sums
        return {name: value / max(weights, 1) for name, value in zip(names, sums, strict=True)}


class Checkpoints:
    """Saves a training regularly, on request and at its end, and restores it.

    All ranks must call a method at the same step. Only rank 0 reads and writes files.
    """

    def __init__(
        self,
        folder: Path,
        segment: Segment,
        key: str,
        learner: Learner,
        ranks: Ranks,
        settings: TrainSettings,
        steps_in: Callable[[int], int],
        log: Callable[[str], None],
    ) -> None:
        """Store the arguments. No file is read.

        Args:
            folder: for checkpoints within the segment, used by this training only; may be missing.
            segment: the segment to train; earlier segments of the same training are resumed.
            key: of the training, see `training_key`.
            learner: has the variables.
            ranks: the processes that train together.
            settings: number of epochs, and how often to save.
            steps_in: returns the number of steps of an epoch.
            log: takes lines for the user, on rank 0.
        """
        self._folder, self._segment, self._key = folder, segment, key
        self._learner, self._ranks, self._settings = learner, ranks, settings
        self._steps_in, self._log = steps_in, log
        self._last_save, self._saved = time.monotonic(), (0, 0)
        self._lock = contextlib.ExitStack()
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None

    def restore(self, figures: int) -> Position:
        """Restore the latest checkpoint on all ranks; without one, copy the variables of rank 0.

        Locks the folder of checkpoints until `close`.

        If the number of ranks has not changed since the checkpoint, each rank gets its own sums
        back; otherwise rank 0 gets the sums of all.

        Args:
            figures: number of sums: loss, metrics and weights.

        Raises:
            UserError: a process of another training in this folder does not end.
        """
        learner, ranks = self._learner, self._ranks
        position = Position(np.zeros(figures))
        limit = self._settings.stall_limit + LOCK_LIMIT
        self._lock.enter_context(training_lock(self._folder, ranks, limit, self._log))
        counters, sums = np.zeros(3, np.int64), np.zeros((ranks.size, figures))
        if ranks.writes and (checkpoint := self._latest()):
            state = checkpoint.state
            *arrays, saved_sums = checkpoint.arrays
            for variable, array in zip(learner.variables, arrays, strict=True):
                variable.assign(array)
            counters[:] = state.epoch, state.step, state.done
            position.history = state.history
            sums = _distribute(saved_sums, ranks.size)
        ranks.broadcast_variables(learner.variables, "initial")
        position.epoch, position.step, position.done = map(
            int, ranks.broadcast(counters, "position")
        )
        self._saved = position.epoch, position.step
        position.sums = ranks.broadcast(sums, "sums")[ranks.rank].copy()
        if ranks.writes and self._saved != (0, 0):
            self._log(f"resuming after {self._describe(position)}")
        ranks.report_progress(f"after {self._describe(position)}")
        return position

    def _latest(self) -> Checkpoint | None:
        """Return the latest usable checkpoint, or the end of the latest usable segment.

        Checkpoints are large, so only those that may be the latest are read.
        """
        epochs = self._segment.epoch
        checkpoint = first_usable(checkpoints_by_step(self._folder), self._key, epochs, self._log)
        reached = checkpoint.state.epoch if checkpoint else 0
        later = [
            path
            for path in segment_states(self._segment.folder)
            if reached < int(path.stem) <= epochs
        ]
        return first_usable(later, self._key, epochs, self._log) or checkpoint

    def save(self, position: Position) -> None:
        """Save a position, unless it was saved or restored last."""
        self._last_save = time.monotonic()
        if self._saved == (position.epoch, position.step):
            return
        self._saved = position.epoch, position.step
        sums = self._ranks.gather(position.sums, "sums")
        if self._ranks.writes:
            # One at a time: if the disk is slower than the training, training waits here.
            self.finish()
            self._writing = self._writer.submit(
                save_checkpoint, self._folder, position.done, self._content(position, sums)
            )
        self._ranks.report_progress(f"after {self._describe(position)}")

    def finish(self) -> None:
        """Wait until the last checkpoint is on the disk.

        Raises:
            OSError: it could not be written.
        """
        if self._writing:
            self._writing.result()
            self._writing = None

    def end(self, position: Position) -> None:
        """Write the state at the end of the segment, from which the next segment starts."""
        sums = self._ranks.gather(position.sums, "sums")
        if self._ranks.writes:
            self.finish()
            write_checkpoint(self._segment.state, self._content(position, sums))
        self._ranks.report_progress(f"after {self._describe(position)}")

    def close(self) -> None:
        """Delete the checkpoints of the segment, and release the locks."""
        if self._ranks.writes:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._lock.close()

    def _content(self, position: Position, sums: np.ndarray) -> Checkpoint:
        """Return a checkpoint of copies, which later steps do not change."""
        state = TrainingState(
            epoch=position.epoch, step=position.step, done=position.done, history=position.history
        )
        arrays = [*(variable.numpy() for variable in self._learner.variables), sums]
        return Checkpoint(self._key, state, arrays)

    def requests(self) -> np.ndarray:
        """Return what this rank asks for: to save, and to stop for each of `SIGNALS`.

        (1 + signals,) float32, 0 or 1. The ranks sum their requests: if one rank asks, all act.
        """
        due = time.monotonic() - self._last_save >= 60 * self._settings.save_minutes
        return np.array([due and self._ranks.writes, *received_signals()], np.float32)

    def stop_is_requested(self) -> bool:
        """Return whether any rank has received a signal to stop; all ranks call it together."""
        _, *stop = self._ranks.sum(self.requests(), "requests") > 0
        return any(stop)

    def handle_requests(self, agreed: np.ndarray, position: Position) -> None:
        """Save or stop, as the sum of the requests of all ranks asks for.

        Raises:
            StartAgain: the training stops; its state is saved.
        """
        save, *stop = np.asarray(agreed) > 0
        if save or any(stop):
            self.save(position)
        if any(stop):
            self.finish()
            names = [signal.name for signal, asked in zip(SIGNALS, stop, strict=True) if asked]
            raise StartAgain(
                f"stopped by {' and '.join(names)} after {self._describe(position)}; the state is "
                "saved, and the same command resumes from it"
            )

    def _describe(self, position: Position) -> str:
        step = ""
        if position.step:
            step = f", step {position.step} of {self._steps_in(position.epoch)}"
        return f"epoch {position.epoch} of {self._settings.epochs}{step}"


def _distribute(sums: np.ndarray, size: int) -> np.ndarray:
    """Return sums of some ranks, (ranks, n), as sums of `size` ranks: (size, n)."""
    if len(sums) == size:
        return sums
    distributed = np.zeros((size, sums.shape[1]))
    distributed[0] = sums.sum(axis=0)
    return distributed


def training_key(
    manifest: Path,
    settings: TrainSettings,
    task_settings: Mapping[str, Any],
    learner: Learner,
    code: str,
    weights: str | None,
) -> str:
    """Return a hash that a checkpoint must have to be resumed.

    It covers data, settings, code, the file of initial weights and the shapes of all variables, but
    not the machines, the number of epochs and the patience: those may change when a training
    resumes.
    """
    values = settings.model_dump(exclude={*settings.EXECUTION, "patience"})
    shapes = [list(variable.shape) for variable in learner.variables]
    identity = [SCHEMA, sha256_of(manifest), values, dict(task_settings), shapes, code, weights]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
