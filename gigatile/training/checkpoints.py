"""The files of checkpoints: where a training goes on that was killed or asked to stop.

A checkpoint is a NumPy archive (no pickle) of every variable, whole or not at all, each array with
a CRC. It belongs to a key, which says what it was trained on and how: with another key it
does not fit and is passed over.
"""

import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gigatile.files import write_whole

KEEP = 2


def save_checkpoint(
    folder: Path, step: int, key: str, state: dict[str, Any], variables: Sequence[np.ndarray]
) -> None:
    """Write the checkpoint of a step and remove all but the newest `KEEP`."""
    header = json.dumps({"key": key, "state": state}).encode()
    arrays = {f"v{number:05d}": value for number, value in enumerate(variables)}
    with write_whole(folder / f"step-{step:09d}.npz") as temporary:
        np.savez(temporary, allow_pickle=False, header=np.frombuffer(header, np.uint8), **arrays)
    for old in newest_first(folder)[KEEP:]:
        old.unlink()
    # What a kill left half-written; nobody else writes here.
    for unfinished in folder.glob(".step-*.npz"):
        unfinished.unlink()


def newest_checkpoint(
    folder: Path, key: str, warn: Callable[[str], None]
) -> tuple[dict[str, Any], list[np.ndarray]] | None:
    """Return state and variables of the newest whole checkpoint that belongs to `key`.

    A damaged one is reported through `warn` and passed over.
    """
    for path in newest_first(folder):
        try:
            with np.load(path, allow_pickle=False) as archive:
                header = json.loads(archive["header"].tobytes())
                if header["key"] != key:
                    warn(f"{path}: of other settings or data, passed over")
                    continue
                names = sorted(name for name in archive.files if name != "header")
                return header["state"], [archive[name] for name in names]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            warn(f"{path}: damaged ({error}), passed over")
    return None


def newest_first(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, whatever they belong to, the newest first."""

    # By time and not by step: a longer training of other settings may have left its own here.
    def written(path: Path) -> tuple[int, str]:
        return path.stat().st_mtime_ns, path.name

    return sorted(folder.glob("step-*.npz"), key=written, reverse=True)
