"""Training on shards in a real store gives the weights of training on those on a disk."""

import json
import os
import signal
import subprocess
import time

import numpy as np
import pytest
from trained import assert_same_bits

from gigatile.records import Tile, encode_tile, write_records
from gigatile.records.shard_layout import Source
from gigatile.records.tile import encode_jpeg
from gigatile.records.writing import write_shards
from gigatile.settings.shards import ShardSettings


@pytest.fixture
def manifests(tmp_path, store, launcher, monkeypatch):
    """Return the manifests of equal shards on a disk and in the store."""
    monkeypatch.setattr(launcher, "environment", launcher.environment | store.environment)
    sources, random = {}, np.random.default_rng(1)
    for slide in ("train-a", "train-b", "valid-a", "valid-b"):
        split, label = slide.split("-")
        path = tmp_path / f"{slide}.tfrecord"
        noise = [random.integers(0, 256, (32, 32, 3), np.uint8) for _ in range(60)]
        tiles = [Tile(encode_jpeg(n, 90), slide, x, 0, 32, 0.5, 1.0) for x, n in enumerate(noise)]
        write_records(path, map(encode_tile, tiles))
        sources.setdefault(split, []).append(Source(slide, slide, label, path))
    for name, folder in (("disk", None), ("store", f"s3://slides/{tmp_path.name}")):
        settings = ShardSettings(target_mb=0.02, store=folder)
        write_shards(sources, settings, tmp_path / name)
    return tmp_path / "disk/manifest.json", tmp_path / "store/manifest.json"


@pytest.mark.parametrize("ranks", [1, 2])
def test_weights_are_the_same(manifests, tmp_path, launcher, ranks):
    for name, manifest in zip("ab", manifests, strict=True):
        launcher.train(manifest, tmp_path / name, ranks)
    assert_same_bits(tmp_path / "a/segments", tmp_path / "b/segments")
    described = json.loads((tmp_path / "b/segments/0002.json").read_text())
    assert described["data"]["train"]["shards"][0]["file"].startswith("s3://")


def test_killed_training_resumes(manifests, tmp_path, launcher):
    launcher.train(manifests[0], tmp_path / "whole")
    options = launcher.train_arguments(manifests[1], tmp_path / "cut", 1, save_minutes=1e-6)
    process = subprocess.Popen(
        launcher.command(1, "scripts/train.py", *options),
        env=launcher.environment,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    until = time.monotonic() + 120
    while not list((tmp_path / "cut/checkpoints").glob("step-*.npz")):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = launcher.train(manifests[1], tmp_path / "cut")
    assert "resuming after epoch" in done.stdout
    assert_same_bits(tmp_path / "whole/segments", tmp_path / "cut/segments")
