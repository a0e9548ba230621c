"""The files of checkpoints: where a training goes on that was killed, or stopped, or has ended.

A checkpoint is a NumPy archive (no pickle) of every variable, whole or not at all, each array with
a CRC. It belongs to a key, which says what it was trained on and how: with another key it
does not fit and is passed over.
"""

import json
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gigatile.files import write_whole

KEEP = 2


def write_checkpoint(
    path: Path, key: str, state: dict[str, Any], variables: Sequence[np.ndarray]
) -> None:
    """Write one checkpoint.

    Args:
        path: ends in .npz.
        key: what it belongs to.
        state: what else there is to know, as JSON; `epoch` and `step` say how far it is.
        variables: the arrays, in an order of the caller's.
    """
    header = json.dumps({"key": key, "state": state}).encode()
    arrays = {f"v{number:05d}": value for number, value in enumerate(variables)}
    with write_whole(path) as temporary:
        np.savez(temporary, allow_pickle=False, header=np.frombuffer(header, np.uint8), **arrays)


def save_checkpoint(
    folder: Path, step: int, key: str, state: dict[str, Any], variables: Sequence[np.ndarray]
) -> None:
    """Write the checkpoint of a step and remove all but the newest `KEEP`."""
    write_checkpoint(folder / f"step-{step:09d}.npz", key, state, variables)
    for old in newest_first(folder)[KEEP:]:
        old.unlink()
    # What a kill left half-written; nobody else writes here.
    for unfinished in folder.glob(".step-*.npz"):
        unfinished.unlink()


def furthest_checkpoint(
    paths: Iterable[Path], key: str, epochs: int, warn: Callable[[str], None]
) -> tuple[dict[str, Any], list[np.ndarray]] | None:
    """Return state and variables of the whole checkpoint that is furthest in a training.

    Args:
        paths: where to look.
        key: of the training.
        epochs: a checkpoint beyond so many is of a training that was to be longer.
        warn: takes a line for each that is damaged or of another training; it is passed over.
    """
    found = []
    for path in paths:
        try:
            with np.load(path, allow_pickle=False) as archive:
                header = json.loads(archive["header"].tobytes())
            state = header["state"]
            if header["key"] != key:
                warn(f"{path}: of other settings, data or code, passed over")
            elif (place := (state["epoch"], state["step"])) <= (epochs, 0):
                found.append((place, path, state))
        except _DAMAGES as error:
            warn(f"{path}: damaged ({error}), passed over")
    for _, path, state in sorted(found, key=lambda one: one[0], reverse=True):
        try:
            with np.load(path, allow_pickle=False) as archive:
                names = sorted(name for name in archive.files if name != "header")
                return state, [archive[name] for name in names]
        except _DAMAGES as error:
            warn(f"{path}: damaged ({error}), passed over")
    return None


# What reading an archive raises whose bytes are not those that were written.
_DAMAGES = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile)


def newest_first(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, whatever they belong to, the newest first."""

    # By time and not by step: a longer training of other settings may have left its own here.
    def written(path: Path) -> tuple[int, str]:
        return path.stat().st_mtime_ns, path.name

    return sorted(folder.glob("step-*.npz"), key=written, reverse=True)
