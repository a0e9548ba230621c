"""The files of checkpoints: where a training goes on that was killed, or stopped, or has ended.

A checkpoint is a NumPy archive (no pickle) of every variable, whole or not at all. The SHA-256 of
all its bytes stands at its end, as the comment of the ZIP archive that it is: the CRCs of its
arrays say nothing of the headers between them. It belongs to a key, which says what it was trained
on and how: with another key it does not fit and is passed over.
"""

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from gigatile.files import write_whole

T = TypeVar("T")

KEEP = 2
# The hexadecimal SHA-256 at a checkpoint's end, of all bytes before it.
_DIGEST_BYTES = 64
_BLOCK_BYTES = 1 << 20


def write_checkpoint(
    path: Path, key: str, state: dict[str, Any], variables: Sequence[np.ndarray]
) -> None:
    """Write one checkpoint.

    Args:
        path: ends in .npz.
        key: what it belongs to.
        state: what else there is to know, as JSON; `epoch` and `step` say how far it is.
        variables: the arrays, in an order of the caller's.

    Raises:
        OSError: it cannot be written; it names `path`.
    """
    header = json.dumps({"key": key, "state": state}).encode()
    arrays = {f"v{number:05d}": value for number, value in enumerate(variables)}
    with write_whole(path) as temporary:
        np.savez(temporary, allow_pickle=False, header=np.frombuffer(header, np.uint8), **arrays)
        with zipfile.ZipFile(temporary, "a") as archive:
            archive.comment = b"0" * _DIGEST_BYTES
        with temporary.open("r+b") as handle:
            digest = _digest_of(handle)
            handle.seek(-_DIGEST_BYTES, os.SEEK_END)
            handle.write(digest)


def _digest_of(handle: BinaryIO) -> bytes:
    """Return the digest of a checkpoint's bytes but those of the digest itself."""
    left = max(0, handle.seek(0, os.SEEK_END) - _DIGEST_BYTES)
    handle.seek(0)
    digest = hashlib.sha256()
    while block := handle.read(min(left, _BLOCK_BYTES)):
        digest.update(block)
        left -= len(block)
    return digest.hexdigest().encode()


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
        header = _read(path, _header_of, warn)
        if header is None:
            continue
        state = header["state"]
        if header["key"] != key:
            warn(f"{path}: of other settings, data or code, passed over")
        elif (place := (state["epoch"], state["step"])) <= (epochs, 0):
            found.append((place, path, state))
    for _, path, state in sorted(found, key=lambda one: one[0], reverse=True):
        variables = _read(path, _variables_of, warn)
        if variables is not None:
            return state, variables
    return None


def _read(path: Path, part: Callable[[BinaryIO], T], warn: Callable[[str], None]) -> T | None:
    """Return a part of a checkpoint; None for one that is damaged, of which `warn` is told."""
    try:
        with path.open("rb") as handle:
            # Before anything in it is believed: what a reader makes of wrong bytes has no limits.
            digest = _digest_of(handle)
            if handle.read() != digest:
                warn(f"{path}: damaged (its SHA-256 is not the one at its end), passed over")
                return None
            handle.seek(0)
            return part(handle)
    except OSError as error:
        warn(f"{path}: cannot be read ({error.strerror}), passed over")
        return None


def _header_of(handle: BinaryIO) -> Any:
    with np.load(handle, allow_pickle=False) as archive:
        return json.loads(archive["header"].tobytes())


def _variables_of(handle: BinaryIO) -> list[np.ndarray]:
    with np.load(handle, allow_pickle=False) as archive:
        return [archive[name] for name in sorted(archive.files) if name != "header"]


def newest_first(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, whatever they belong to, the newest first."""

    # By time and not by step: a longer training of other settings may have left its own here.
    def written(path: Path) -> tuple[int, str]:
        return path.stat().st_mtime_ns, path.name

    return sorted(folder.glob("step-*.npz"), key=written, reverse=True)
