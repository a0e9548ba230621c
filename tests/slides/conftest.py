"""Slides for tests: real SVS files, written with tifffile, whose every pixel is known."""

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from gigatile.records import Tile, decode_tile, read_records

GLASS = (243, 243, 243)
STAIN = (190, 110, 160)


def glass(height: int, width: int) -> np.ndarray:
    """Return an empty slide (height, width, 3)."""
    return np.full((height, width, 3), GLASS, np.uint8)


def tissue(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Return stained tissue (height, width, 3) in which no two tiles look alike."""
    noise = np.random.default_rng(seed).integers(-25, 26, (height, width, 1))
    return (np.array(STAIN) + noise).astype(np.uint8)


def write_svs(
    path: Path,
    *levels: np.ndarray | Any,
    mpp: float | str | None = 0.5,
    power: int | None = 20,
    compression: str | None = "zlib",
    tile: int = 64,
    **layout: Any,
) -> Path:
    """Write an Aperio slide of exactly these levels; without loss unless `compression` says so."""
    height, width = layout.get("shape", levels[0].shape if len(levels) else None)[:2]
    facts = "" if power is None else f"|AppMag = {power}"
    facts += "" if mpp is None else f"|MPP = {mpp}"
    described = f"Aperio Image Library v12.0.15\r\n{width}x{height} [0,0 {width}x{height}]{facts}"
    with tifffile.TiffWriter(path, byteorder="<") as tiff:
        for level in levels:
            tiff.write(
                level,
                photometric="rgb",
                tile=(tile, tile),
                compression=compression,
                description=described,
                metadata=None,
                software=False,
                **layout,
            )
    return path


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
    def files(self) -> list[str]:
        found = self.folder.iterdir() if self.folder.exists() else ()
        return sorted(path.name for path in found)


@pytest.fixture
def tile(command, tmp_path) -> Callable[..., Outcome]:
    """Tile a slide with `scripts/tile_slide.py`, tiles of 64 px unless the settings say otherwise."""

    def run(source: Path, *options: object, folder: str = "out", **settings: Any) -> Outcome:
        out = tmp_path / folder
        process = command(
            "tile_slide.py",
            *("--source", source, "--slide", "S1", "--patient", "P1", "--label", "luad"),
            *("--settings", json.dumps({"size": 64} | settings)),
            *("--records", out / "S1.tfrecord", "--state", out / "S1.json"),
            *("--overview", out / "S1.jpg", *options),
        )
        return Outcome(process, out)

    return run
