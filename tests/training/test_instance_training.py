"""Mask R-CNN trained by the command, on ranks: equal weights, resume to the same bits, learning."""

import json
import re
import subprocess
import time

import keras
import numpy as np
import pytest
from small_images import nuclei
from trained import assert_same_bits, assert_same_to_rounding, history, last_model

from gigatile.instances.label_images import instances_of_labels
from gigatile.instances.mask_rcnn import LOSSES
from gigatile.records.instances import (
    AnnotatedImage,
    decode_annotated,
    encode_annotated,
    encode_png,
)
from gigatile.records.shard_layout import Source
from gigatile.records.tfrecord import write_records
from gigatile.records.writing import write_shards
from gigatile.settings.shards import ShardSettings
from gigatile.settings.train import TrainSettings
from gigatile.tasks.instance_segmentation.records import record_id
from gigatile.tasks.instance_segmentation.validation import validate
from gigatile.training.segments import Segment

DETECTION = {
    "canvas": [96, 96],
    "anchor_sizes": [12, 24, 48, 96, 192],
    "scale_jitter": 0.2,
    "intensity": 0.1,
    "rpn_pre_nms_topk_train": 100,
    "rpn_post_nms_topk_train": 100,
    "roi_batch_size_per_image": 32,
}
TRAIN = {"model": "mask_small", "batch_size": 4, "clip_norm": 5.0}
IMAGES = 6


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    """Write shards of images with different numbers of nuclei, one without any."""
    folder = tmp_path_factory.mktemp("shards")
    sources = {"train": [], "valid": []}
    for number in range(IMAGES + 1):
        # More than 16 in some: the arrays of two ranks then have different shapes.
        pixels, labels = nuclei(number, count=(0, 6, 20)[number % 3])
        instances = instances_of_labels(labels)
        name = f"I{number}"
        image = AnnotatedImage(encode_png(pixels), name, *labels.shape, None, instances)
        path = folder / f"{name}.tfrecord"
        write_records(path, [encode_annotated(image)])
        split = "valid" if number == IMAGES else "train"
        sources[split].append(Source(name, f"P{number}", "", path))
    out = folder / "shards"
    write_shards(sources, ShardSettings(), out, unit="image", record_id=record_id)
    return out / "manifest.json"


def command(manifest, out, ranks=1, **settings) -> list[str]:
    options = {
        "manifest": manifest,
        "ranks": ranks,
        "epochs": settings.pop("epochs", 2),
        "save-minutes": settings.pop("save_minutes", 10),
        "task": "instance_segmentation",
        "task-settings": json.dumps({"instances": {}, "detection": DETECTION}),
        "settings": json.dumps(TRAIN | settings),
        "checkpoints": out / "checkpoints",
        "out": out / "segments",
    }
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


@pytest.fixture(scope="module")
def train(launcher, manifest):
    def run(out, ranks=1, **settings):
        done = launcher.run(ranks, "scripts/train.py", *command(manifest, out, ranks, **settings))
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run


@pytest.fixture(scope="module")
def one_rank(train, tmp_path_factory):
    out = tmp_path_factory.mktemp("one-rank")
    return out, train(out).stdout


def test_training_is_described_and_validated(one_rank, manifest):
    out, log = one_rank
    assert "6 images, 1 categories, 2 steps of 4 images per epoch on 1 rank(s)" in log
    rows = history(out / "segments")
    assert np.isfinite(rows).all() and len(rows[0]) == 2 + len(LOSSES)
    described = json.loads(last_model(out / "segments").with_suffix(".json").read_text())
    assert described["metrics"] == list(LOSSES)
    assert described["detection"]["canvas"] == [96, 96]
    assert "score_threshold" not in described["detection"]
    # Keras' own layers only, so that the model can be loaded without this project.
    model = keras.models.load_model(last_model(out / "segments"), compile=False, safe_mode=True)
    assert {layer.name for layer in model.layers} >= {"trunk", "box_head", "mask_head"}
    settings = {"detection": {"score_threshold": 0.001}}
    validation = validate(Segment(out / "segments", 2), manifest, settings)
    assert validation.criterion == "mask_ap" and validation.count == 1
    assert {"mask_ap", "mask_ap50", "box_ap", *LOSSES} < set(validation.means)


@pytest.mark.long
def test_one_and_two_ranks_reach_the_same_weights(train, tmp_path):
    """6 images in batches of 4: two ranks share the last batch of 2 unequally."""
    for ranks in (1, 2):
        train(tmp_path / str(ranks), ranks, epochs=1, learning_rate=0.0001)
    assert_same_to_rounding(tmp_path / "1" / "segments", tmp_path / "2" / "segments")


@pytest.mark.long
def test_killed_training_ends_with_the_same_model(launcher, train, one_rank, manifest, tmp_path):
    arguments = command(manifest, tmp_path, save_minutes=1e-6)
    process = subprocess.Popen(
        launcher.command(1, "scripts/train.py", *arguments),
        env=launcher.environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    deadline = time.monotonic() + 200
    while not list((tmp_path / "checkpoints").glob("step-*.npz")):
        assert process.poll() is None and time.monotonic() < deadline, "no checkpoint was written"
        time.sleep(0.02)
    # Each rank has its own process group; the session contains all.
    subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=True)
    process.communicate(timeout=60)
    assert not (tmp_path / "segments").exists()
    again = train(tmp_path)
    assert re.search("resuming after epoch [01] of 2", again.stdout)
    assert_same_bits(one_rank[0] / "segments", tmp_path / "segments")
    models = [last_model(folder / "segments") for folder in (one_rank[0], tmp_path)]
    assert models[0].read_bytes() == models[1].read_bytes()


@pytest.mark.long
def test_half_precision_trains(train, tmp_path):
    train(tmp_path, epochs=1, mixed_precision=True)
    assert np.isfinite(history(tmp_path / "segments")).all()


def test_defaults_of_the_recipe_are_those_of_detectron2():
    settings = TrainSettings()
    assert (settings.momentum, settings.warmup_factor, settings.decay_factor) == (0.9, 0.001, 0.1)


def test_image_without_annotations_is_refused(launcher, manifest, tmp_path):
    pixels, labels = nuclei(1)
    path = tmp_path / "N.tfrecord"
    image = AnnotatedImage(encode_png(pixels), "N", *labels.shape, None, None)
    write_records(path, [encode_annotated(image)])
    sources = {split: [Source("N", "P", "", path)] for split in ("train", "valid")}
    write_shards(sources, ShardSettings(), tmp_path / "s", unit="image", record_id=record_id)
    arguments = command(tmp_path / "s/manifest.json", tmp_path / "out")
    done = launcher.run(1, "scripts/train.py", *arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "image N: has no annotations to train on" in done.stderr
    assert decode_annotated(encode_annotated(image)).instances is None
