"""Run the subcommands in this process."""

import argparse
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gigatile.demo.svs import write_svs

Call = Callable[..., None]


@pytest.fixture
def call() -> Call:
    """Parse arguments and run a subcommand, as `gigatile` does."""

    def run(module: ModuleType, *arguments: object) -> None:
        parser = argparse.ArgumentParser()
        module.add_arguments(parser)
        module.run(parser.parse_args([*map(str, arguments)]))

    return run


@pytest.fixture(scope="session")
def slide_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small SVS file with 0.5 µm per pixel."""
    path = tmp_path_factory.mktemp("slide") / "slide.svs"
    pixels = np.random.default_rng(0).integers(0, 256, (512, 512, 3), dtype=np.uint8)
    write_svs(path, pixels, mpp=0.5, objective_power=20)
    return path.read_bytes()


@pytest.fixture
def write_slides(slide_bytes: bytes) -> Callable[..., Path]:
    """Write slides that differ in their last bytes."""

    def write(folder: Path, *names: str) -> Path:
        for number, name in enumerate(names):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(slide_bytes + f"{name} {number}".encode())
        return folder

    return write
