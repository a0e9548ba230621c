"""Tile a slide with the workflow's command, and read its outputs."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from known_slides import tiles_of_level_0

from gigatile.records import Tile, decode_tile, read_records

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/prepare.py"


@dataclass(frozen=True)
class Outcome:
    """The process of `scripts/prepare.py`, and its output files."""

    process: subprocess.CompletedProcess[str]
    folder: Path

    @property
    def state(self) -> dict[str, Any]:
        return json.loads((self.folder / "S1.json").read_text())

    @property
    def tiles(self) -> list[Tile]:
        return [decode_tile(data) for data in read_records(self.folder / "S1.tfrecord")]

    @property
    def index(self) -> pd.DataFrame:
        return pd.read_parquet(self.folder / "S1.parquet")

    @property
    def files(self) -> list[str]:
        paths = self.folder.iterdir() if self.folder.exists() else ()
        return sorted(path.name for path in paths)


def tile_line(
    source: Path, out: Path, *options: object, patch: str = "", **settings: Any
) -> list[str]:
    """Return the command line that tiles a slide; tiles have 64 px by default.

    Args:
        source: the slide's file.
        out: the folder to write to.
        options: further options of the command.
        patch: Python code that runs before the command, in its process.
        settings: of the section `tiles`.
    """
    start = f"{patch}\nimport runpy, sys\nsys.argv = sys.argv[1:]\n"
    start += 'runpy.run_path(sys.argv[0], run_name="__main__")'
    line = [
        *((sys.executable, "-c", start) if patch else (sys.executable,)),
        *(SCRIPT, "--task", "tile_classification", "--source", source, "--slide", "S1"),
        *("--settings", json.dumps({"size": 64} | settings)),
        *("--records", out / "S1.tfrecord", "--state", out / "S1.json"),
        *("--overview", out / "S1.jpg", "--index", out / "S1.parquet", *options),
    ]
    return list(map(str, line))


def assert_tiled(outcome: Outcome, kept: int | None = None) -> dict[str, Any]:
    """Check the outputs of a usable slide, and return its state."""
    assert outcome.process.returncode == 0, outcome.process.stderr
    state = outcome.state
    assert (state["state"], state["reason"]) == ("tiled", None)
    assert state["tiles"]["kept"] == len(outcome.tiles) > 0
    assert state["tiles"]["kept"] == (outcome.index.dropped == "").sum()
    if kept is not None:
        assert state["tiles"]["kept"] == kept
    return state


def assert_same_bytes(first: Outcome, second: Outcome, *ignored: str) -> None:
    """Check that two outcomes have the same files, byte for byte, except the `ignored` ones."""
    assert first.files == second.files
    for name in set(first.files) - set(ignored):
        assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes(), name


def with_bad_tiles(source: Path, target: Path, which: list[int]) -> Path:
    """Copy a slide and overwrite some native tiles of level 0 with zeros."""
    data = bytearray(source.read_bytes())
    for offset, length in np.array(tiles_of_level_0(source))[which].reshape(-1, 2).tolist():
        data[offset : offset + length] = bytes(length)
    target.write_bytes(data)
    return target
