"""The files of checkpoints, from which a training resumes after it was killed, or at its end.

A checkpoint is a NumPy archive (no pickle) of every variable. It is written whole or not at all.
The SHA-256 of the other bytes is at its end, as the comment of the ZIP archive: ZIP's own CRCs
cover the arrays but not the headers between them. Its key identifies the data, settings and code of
the training; a checkpoint with another key is skipped.
"""

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from gigatile.files import write_whole
from gigatile.json_models import JsonModel

KEEP = 2
# The hexadecimal SHA-256 at a checkpoint's end, of all bytes before it.
_DIGEST_BYTES = 64
_BLOCK_BYTES = 1 << 20


class TrainingState(JsonModel):
    """How far a training is.

    Attributes:
        epoch: number of complete epochs.
        step: steps done of the current epoch.
        done: steps done in total.
        history: for each complete epoch its number, loss and metrics.
    """

    epoch: int
    step: int
    done: int
    history: list[list[int | float]]


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint.

    Attributes:
        key: of the training.
        state: how far the training is.
        arrays: the variables, and the sums of the current epoch.
    """

    key: str
    state: TrainingState
    arrays: Sequence[np.ndarray]


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint (.npz).

    Raises:
        OSError: the file cannot be written; the error names `path`.
    """
    header = json.dumps({"key": checkpoint.key, "state": checkpoint.state.to_json()}).encode()
    arrays = {f"v{number:05d}": value for number, value in enumerate(checkpoint.arrays)}
    with write_whole(path) as temporary:
        np.savez(temporary, allow_pickle=False, header=np.frombuffer(header, np.uint8), **arrays)
        with zipfile.ZipFile(temporary, "a") as archive:
            archive.comment = b"0" * _DIGEST_BYTES
        with temporary.open("r+b") as handle:
            digest = _digest_of(handle)
            handle.seek(-_DIGEST_BYTES, os.SEEK_END)
            handle.write(digest)


def _digest_of(handle: BinaryIO) -> bytes:
    """Return the SHA-256 of a checkpoint without its last 64 bytes, where the digest is."""
    left = max(0, handle.seek(0, os.SEEK_END) - _DIGEST_BYTES)
    handle.seek(0)
    digest = hashlib.sha256()
    while block := handle.read(min(left, _BLOCK_BYTES)):
        digest.update(block)
        left -= len(block)
    return digest.hexdigest().encode()


def save_checkpoint(folder: Path, step: int, checkpoint: Checkpoint) -> None:
    """Write the checkpoint of a step, and delete all but the newest `KEEP`."""
    write_checkpoint(folder / f"step-{step:09d}.npz", checkpoint)
    for old in checkpoints_by_time(folder)[KEEP:]:
        old.unlink()
    # Left half-written by a killed process; only this process writes here.
    for unfinished in folder.glob(".step-*.npz"):
        unfinished.unlink()


def first_usable(
    paths: Iterable[Path], key: str, epochs: int, warn: Callable[[str], None]
) -> Checkpoint | None:
    """Return the first checkpoint that is intact and belongs to this training.

    Args:
        paths: in the order of preference; those after the first usable one are not read.
        key: of the training.
        epochs: a checkpoint beyond this many epochs is skipped.
        warn: takes a line for each checkpoint that is skipped as damaged or of another training.
    """
    for path in paths:
        if checkpoint := _read(path, key, epochs, warn):
            return checkpoint
    return None


def _read(path: Path, key: str, epochs: int, warn: Callable[[str], None]) -> Checkpoint | None:
    """Return a checkpoint; None if it is skipped, see `first_usable`."""
    try:
        with path.open("rb") as handle:
            # First of all: on damaged bytes NumPy's reader may raise anything.
            digest = _digest_of(handle)
            if handle.read() != digest:
                warn(f"{path}: damaged (its SHA-256 is not the one at its end); skipped")
                return None
            handle.seek(0)
            with np.load(handle, allow_pickle=False) as archive:
                header = json.loads(archive["header"].tobytes())
                if header["key"] != key:
                    warn(f"{path}: made with other settings, data or code; skipped")
                    return None
                state = TrainingState.model_validate(header["state"])
                if (state.epoch, state.step) > (epochs, 0):
                    return None
                names = [name for name in sorted(archive.files) if name != "header"]
                return Checkpoint(key, state, [archive[name] for name in names])
    except OSError as error:
        warn(f"{path}: cannot be read ({error.strerror}); skipped")
        return None


def checkpoints_by_step(folder: Path) -> list[Path]:
    """Return all checkpoints in a folder, those with most steps first."""
    return sorted(folder.glob("step-*.npz"), reverse=True)


def checkpoints_by_time(folder: Path) -> list[Path]:
    """Return all checkpoints in a folder, the newest first.

    A longer training with other settings may have left checkpoints with more steps.
    """

    def written(path: Path) -> tuple[int, str]:
        return path.stat().st_mtime_ns, path.name

    return sorted(folder.glob("step-*.npz"), key=written, reverse=True)
