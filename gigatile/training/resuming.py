"""Where a training is, when that is saved, and how all ranks go on from there.

A checkpoint is written beside the training, by a thread: the steps wait only while the variables
are copied.
"""

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
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
    first_usable,
    furthest_first,
    save_checkpoint,
    write_checkpoint,
)
from gigatile.training.learner import Learner
from gigatile.training.locking import only_training
from gigatile.training.ranks import Ranks
from gigatile.training.segments import Segment, states

# Another content of checkpoints is another number, so that an older one is not misread.
SCHEMA = 6
# Seconds beyond train.stall_limit that a training waits for the ranks of another one to end. A rank
# that has lost the others leaves after train.stall_limit; the lock of a crashed machine on NFSv4
# is released after the server's lease, usually 90 s.
LOCK_LIMIT = 120.0


@dataclass
class Position:
    """How far a training is.

    Attributes:
        epoch: complete ones.
        step: steps done of the one after them.
        done: steps done in all.
        sums: (3,) float64 over the samples that this rank has seen in these steps: of loss, of
            the task's measure, of weights.
        history: a row per complete epoch: its number, loss and measure. From before a restart on
            rank 0 alone, which needs it.
    """

    epoch: int = 0
    step: int = 0
    done: int = 0
    sums: np.ndarray = field(default_factory=lambda: np.zeros(3))
    history: list[list[float]] = field(default_factory=list)


class Checkpoints:
    """Saves a training now and then, when it is asked to stop, and at its end; finds where it was.

    All ranks call a method at the same step. Only rank 0 reads and writes files.
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
        tell: Callable[[str], None],
    ) -> None:
        """Name what is saved, and where; nothing is read yet.

        Args:
            folder: of its own, for checkpoints within the segment; may be missing.
            segment: what is trained; earlier ones of the same training are gone on from.
            key: of the training, as `key_of` gives it.
            learner: its variables are saved and restored.
            ranks: the processes that train together.
            settings: how long the training is, and how often it is saved at least.
            steps_in: returns the number of steps of an epoch.
            tell: takes lines for the user, on rank 0.
        """
        self._folder, self._segment, self._key = folder, segment, key
        self._learner, self._ranks, self._settings = learner, ranks, settings
        self._steps_in, self._tell = steps_in, tell
        self._saved, self._newest = time.monotonic(), (0, 0)
        self._lock = contextlib.ExitStack()
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._written: Future[None] | None = None

    def restore(self) -> Position:
        """Give every rank the variables of the furthest checkpoint; without one, rank 0's.

        Until `close`, no other training uses this folder of checkpoints.

        If the number of ranks is the one that saved the checkpoint, each rank gets its own sums
        back; otherwise rank 0 gets the sums of all.

        Raises:
            UserError: a process of another training in this folder does not end.
        """
        learner, ranks, at = self._learner, self._ranks, Position()
        limit = self._settings.stall_limit + LOCK_LIMIT
        self._lock.enter_context(only_training(self._folder, ranks, limit, self._tell))
        place, parts = np.zeros(3, np.int64), np.stack([at.sums] * ranks.size)
        if ranks.writes and (found := self._furthest()):
            state, (*arrays, parts) = found
            for variable, array in zip(learner.variables, arrays, strict=True):
                variable.assign(array)
            place[:] = state["epoch"], state["step"], state["done"]
            at.history = state["history"]
            parts = _parts_for(ranks.size, parts)
        ranks.same_everywhere(learner.variables, "initial")
        at.epoch, at.step, at.done = map(int, ranks.from_first(place, "place"))
        self._newest = at.epoch, at.step
        at.sums = ranks.from_first(parts, "parts")[ranks.rank].copy()
        if ranks.writes and self._newest != (0, 0):
            self._tell(f"going on after {self._where(at)}")
        ranks.report_progress(f"after {self._where(at)}")
        return at

    def _furthest(self) -> tuple[dict[str, Any], list[np.ndarray]] | None:
        """Return state and variables of the furthest checkpoint, or of the furthest segment's end.

        Checkpoints are large. Only those that may be the furthest are read.
        """
        epochs = self._segment.epoch
        found = first_usable(furthest_first(self._folder), self._key, epochs, self._tell)
        reached = found[0]["epoch"] if found else 0
        further = [
            path for path in states(self._segment.folder) if reached < int(path.stem) <= epochs
        ]
        return first_usable(further, self._key, epochs, self._tell) or found

    def save(self, at: Position) -> None:
        """Save a position, unless it is the one that was saved or restored last."""
        self._saved = time.monotonic()
        if self._newest == (at.epoch, at.step):
            return
        self._newest = at.epoch, at.step
        parts = self._ranks.gather(at.sums, "parts")
        if self._ranks.writes:
            # One at a time: who saves faster than the disk writes waits for it here.
            self.finish()
            self._written = self._writer.submit(
                save_checkpoint, self._folder, at.done, self._key, *self._whole(at, parts)
            )
        self._ranks.report_progress(f"after {self._where(at)}")

    def finish(self) -> None:
        """Wait until what was saved is on the disk.

        Raises:
            OSError: it could not be written.
        """
        if self._written:
            self._written.result()
            self._written = None

    def end(self, at: Position) -> None:
        """Leave the segment's state for the next one."""
        parts = self._ranks.gather(at.sums, "parts")
        if self._ranks.writes:
            self.finish()
            write_checkpoint(self._segment.state, self._key, *self._whole(at, parts))
        self._ranks.report_progress(f"after {self._where(at)}")

    def close(self) -> None:
        """Remove the segment's checkpoints and release the locks."""
        if self._ranks.writes:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._lock.close()

    def _whole(self, at: Position, parts: np.ndarray) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Return what a checkpoint holds: copies, which later steps do not change."""
        state = {"epoch": at.epoch, "step": at.step, "done": at.done, "history": at.history}
        return state, [*(variable.numpy() for variable in self._learner.variables), parts]

    def wishes(self) -> np.ndarray:
        """Return what this rank wants: to save, and to stop for each of `SIGNALS`; float32, 0 or 1.

        The sum over all ranks is what they agree on: what one wants, all do.
        """
        due = time.monotonic() - self._saved >= 60 * self._settings.save_minutes
        return np.array([due and self._ranks.writes, *received_signals()], np.float32)

    def grant(self, agreed: np.ndarray, at: Position) -> None:
        """Do what the ranks have agreed on.

        Raises:
            StartAgain: the training is to stop; it is saved.
        """
        save, *stop = np.asarray(agreed) > 0
        if save or any(stop):
            self.save(at)
        if any(stop):
            self.finish()
            names = [signal.name for signal, asked in zip(SIGNALS, stop, strict=True) if asked]
            raise StartAgain(
                f"stopped by {' and '.join(names)} after {self._where(at)}; nothing is lost, "
                "the same command goes on from there"
            )

    def _where(self, at: Position) -> str:
        part = f", step {at.step} of {self._steps_in(at.epoch)}" if at.step else ""
        return f"epoch {at.epoch} of {self._settings.epochs}{part}"


def _parts_for(size: int, parts: np.ndarray) -> np.ndarray:
    """Divide what some ranks had summed up, (ranks, 3), among `size` ranks: (size, 3)."""
    if len(parts) == size:
        return parts
    divided = np.zeros((size, 3))
    divided[0] = parts.sum(axis=0)
    return divided


def key_of(
    manifest: Path,
    settings: TrainSettings,
    others: Mapping[str, Any],
    learner: Learner,
    code: str,
) -> str:
    """Identify what a checkpoint belongs to: data, settings, code and the shapes of its arrays.

    Not how long, or on which machines: those may change before a training goes on. The shapes keep
    a checkpoint of another version of the model from being taken for one of this.
    """
    values: dict[str, Any] = settings.model_dump(exclude=set(settings.EXECUTION))
    shapes = [list(variable.shape) for variable in learner.variables]
    identity = [SCHEMA, sha256_of(manifest), values, dict(others), shapes, code]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
