"""Tiling as the workflow does it: the command, and the three files that it leaves."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from gigatile.records import Tile, decode_tile, read_records


@dataclass(frozen=True)
class Outcome:
    """What `scripts/tile_slide.py` left behind."""

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
        found = self.folder.iterdir() if self.folder.exists() else ()
        return sorted(path.name for path in found)


@pytest.fixture
def tile(command, tmp_path) -> Callable[..., Outcome]:
    """Tile a slide; tiles have 64 px unless the settings say otherwise."""

    def run(source: Path, *options: object, folder: str = "out", **settings: Any) -> Outcome:
        out = tmp_path / folder
        process = command(
            "tile_slide.py",
            *("--source", source, "--slide", "S1"),
            *("--settings", json.dumps({"size": 64} | settings)),
            *("--records", out / "S1.tfrecord", "--state", out / "S1.json"),
            *("--overview", out / "S1.jpg", "--mask", out / "S1.png"),
            *("--index", out / "S1.parquet", *options),
        )
        return Outcome(process, out)

    return run
