"""Fixtures that tile a slide with the workflow's command."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from known_slides import tissue
from outcomes import Outcome, tile_line

from gigatile.demo.svs import write_svs


@pytest.fixture
def tile(tmp_path) -> Callable[..., Outcome]:
    """Return a function that tiles a slide; `under` is a command that wraps `tile_line`."""

    def run(
        source: Path, *options: object, folder: str = "out", under: tuple = (), **settings: Any
    ) -> Outcome:
        out = tmp_path / folder
        line = [*under, *tile_line(source, out, *options, **settings)]
        return Outcome(subprocess.run(line, capture_output=True, text=True, timeout=300), out)

    return run


@pytest.fixture(scope="session")
def pyramid(tmp_path_factory) -> Path:
    """A typical scan: JPEG tiles of 256 px, three levels, tissue everywhere."""
    path = tmp_path_factory.mktemp("pyramid") / "good.svs"
    write_svs(path, tissue(1200, 1800), mpp=0.5, objective_power=20)
    return path
