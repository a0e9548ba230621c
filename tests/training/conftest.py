"""A small training set in shards, and MPI launches of the commands."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from launched import ENVIRONMENT, on_ranks
from volume_patches import a_head, recorded

from gigatile.records import Tile, encode_tile, write_records
from gigatile.records.shard_layout import Source
from gigatile.records.tile import encode_jpeg
from gigatile.records.volume import VolumeRecord
from gigatile.records.writing import write_shards
from gigatile.settings.shards import ShardSettings

ROOT = Path(__file__).parents[2]
SIZE = 32
# Options of scripts/train.py that are not in --settings.
OPTIONS = {
    "code": "--code",
    "epochs": "--epochs",
    "cores": "--cores",
    "stall_limit": "--stall-limit",
    "save_minutes": "--save-minutes",
    "validate_steps": "--validate-steps",
    "limit_batches": "--limit-batches",
}
CLASSES = ("coarse", "fine", "plain")


def draw(label: str, random: np.random.Generator) -> np.ndarray:
    """Return a tile with the texture of a class: (SIZE, SIZE, 3) uint8."""
    grain = {"coarse": 8, "fine": 2, "plain": SIZE}[label]
    noise = random.integers(60, 200, (SIZE // grain, SIZE // grain, 3), np.uint8)
    return noise.repeat(grain, axis=0).repeat(grain, axis=1)


@pytest.fixture(scope="session")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the manifest of shards of 6 slides: 75 tiles for training, 27 for validation."""
    folder = tmp_path_factory.mktemp("training-set")
    random = np.random.default_rng(3)
    sources: dict[str, list[Source]] = {"train": [], "valid": []}
    for split, tiles in (("train", 25), ("valid", 9)):
        for label in CLASSES:
            slide = f"{split}-{label}"
            records = [
                encode_tile(
                    Tile(
                        image=encode_jpeg(draw(label, random), 95),
                        slide=slide,
                        x=SIZE * number,
                        y=0,
                        extent=SIZE,
                        mpp=0.5,
                        tissue=1.0,
                    )
                )
                for number in range(tiles)
            ]
            path = folder / f"{slide}.tfrecord"
            write_records(path, records)
            sources[split].append(Source(slide, slide, label, path))
    write_shards(sources, ShardSettings(target_mb=0.03), folder / "shards")
    return folder / "shards" / "manifest.json"


class Launcher:
    """The launcher that the workflow uses, with its environment."""

    environment = ENVIRONMENT
    command = staticmethod(on_ranks)

    def run(
        self, ranks: int, program: str | Path, *arguments: object
    ) -> subprocess.CompletedProcess:
        """Run a Python program on several ranks."""
        return subprocess.run(
            self.command(ranks, program, *arguments),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def train(
        self, manifest: Path, out: Path, ranks: int = 1, check: bool = True, **settings: object
    ) -> subprocess.CompletedProcess:
        """Run scripts/train.py; segments go to out/segments, checkpoints to out/checkpoints."""
        done = self.run(
            ranks, "scripts/train.py", *self.train_arguments(manifest, out, ranks, **settings)
        )
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    def train_arguments(
        self, manifest: Path, out: Path, ranks: int, **settings: object
    ) -> list[str]:
        """Return the arguments of scripts/train.py."""
        settings = {"epochs": 2, "batch_size": 16, **settings}
        layout = {name: settings.pop(name) for name in OPTIONS if name in settings}
        task = {"tiles": {}, "augmentation": settings.pop("augmentation", {})}
        return [
            *("--manifest", str(manifest), "--settings", json.dumps(settings)),
            *("--task", "tile_classification", "--task-settings", json.dumps(task)),
            *("--ranks", str(ranks)),
            *(word for name, value in layout.items() for word in (OPTIONS[name], str(value))),
            *("--checkpoints", str(out / "checkpoints"), "--out", str(out / "segments")),
        ]


@pytest.fixture(scope="session")
def launcher() -> Launcher:
    """Return the MPI launcher."""
    return Launcher()


@pytest.fixture(scope="module")
def head(tmp_path_factory) -> tuple[np.ndarray, np.ndarray, VolumeRecord]:
    image, labels = a_head((60, 50, 70), 4)
    return image, labels, recorded(tmp_path_factory.mktemp("head") / "v", image, labels)
