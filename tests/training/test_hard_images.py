"""Mask R-CNN trained on images at the limits: every loss and weight stays finite."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from trained import history, last_model, weights

from gigatile.instances.annotations import Instances, empty_instances, stack_instances
from gigatile.instances.detector import Detector
from gigatile.records.instances import AnnotatedImage, encode_annotated, encode_png
from gigatile.records.shard_layout import Source
from gigatile.records.tfrecord import write_records
from gigatile.records.writing import write_shards
from gigatile.settings.shards import ShardSettings
from gigatile.tasks.instance_segmentation.records import record_id
from gigatile.tasks.instance_segmentation.validation import validate
from gigatile.training.segments import Segment

DETECTION = {
    "canvas": [64, 96],
    "anchor_sizes": [8, 16, 32, 64, 128],
    "scale_jitter": 0.3,
    "intensity": 0.2,
    "rpn_pre_nms_topk_train": 60,
    "rpn_post_nms_topk_train": 60,
    "roi_batch_size_per_image": 32,
}
TRAIN = {"model": "mask_small", "batch_size": 2, "clip_norm": 5.0, "learning_rate": 0.01}


def rectangles(*boxes: tuple[int, int, int, int], crowd: bool = False) -> Instances:
    masks = [(np.ones((y2 - y1, x2 - x1), bool), (y1, x1)) for y1, x1, y2, x2 in boxes]
    return stack_instances(masks, [1] * len(masks), crowd=[crowd] * len(masks))


def grid(count: int, step: int, side: int) -> Instances:
    """Return `count`² squares."""
    corners = [(step * i, step * j) for i in range(count) for j in range(count)]
    return rectangles(*((y, x, y + side, x + side) for y, x in corners))


# Height and width of each image, and its instances.
EMPTY = {
    "without instances": (60, 90, empty_instances()),
    "uniform": (0, 0, empty_instances()),
    "with a crowd only": (80, 70, rectangles((5, 5, 60, 60), crowd=True)),
}
IMAGES = EMPTY | {
    "smaller than a stride": (3, 2, rectangles((0, 0, 3, 2))),
    "a single pixel": (1, 1, rectangles((0, 0, 1, 1))),
    "an instance of a pixel": (64, 96, rectangles((63, 95, 64, 96))),
    "of a row": (64, 96, rectangles((20, 0, 21, 96))),
    "as large as the image": (64, 96, rectangles((0, 0, 64, 96))),
    "larger than the canvas": (250, 240, rectangles((200, 210, 240, 230))),
    "long": (5, 250, rectangles((0, 10, 5, 20), (1, 240, 4, 250))),
    "1,024 instances": (64, 96, grid(32, 2, 1)),
    "instances on top of each other": (64, 96, rectangles(*[(10, 10, 40, 40)] * 40)),
}


@pytest.fixture(scope="module")
def train(launcher, tmp_path_factory) -> Callable[..., tuple[Path, Path]]:
    """Return a function that trains on images; it returns the manifest and the segments."""

    def run(images: dict[str, tuple[int, int, Instances]], **settings: object):
        folder = tmp_path_factory.mktemp("hard")
        random, sources = np.random.default_rng(0), []
        for name, (height, width, instances) in images.items():
            shape = (height or 50, width or 50, 3)
            pixels = random.integers(0, 256 if height else 1, shape, np.uint8)
            image = AnnotatedImage(encode_png(pixels), name, *shape[:2], None, instances)
            path = folder / f"{len(sources)}.tfrecord"
            write_records(path, [encode_annotated(image)])
            sources.append(Source(name, name, "", path))
        shards = folder / "shards"
        splits = {"train": sources, "valid": sources}
        write_shards(splits, ShardSettings(), shards, unit="image", record_id=record_id)
        options = {
            "manifest": shards / "manifest.json",
            "ranks": 1,
            "epochs": 2,
            "task": "instance_segmentation",
            "task-settings": json.dumps({"instances": {}, "detection": DETECTION}),
            "settings": json.dumps(TRAIN | settings),
            "checkpoints": folder / "checkpoints",
            "out": folder / "segments",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        done = launcher.run(1, "scripts/train.py", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return shards / "manifest.json", folder / "segments"

    return run


def check(manifest: Path, segments: Path, images: int) -> dict[str, float]:
    """Check weights, losses and detections; return the means of the validation."""
    assert all(np.isfinite(weight).all() for weight in weights(segments))
    assert np.isfinite(history(segments)).all()
    validation = validate(Segment(segments, 2), manifest, {"detection": {"score_threshold": 0.01}})
    assert validation.count == images and np.isfinite([*validation.means.values()]).all()
    return validation.means


@pytest.mark.long
@pytest.mark.slow
def test_images_at_the_limits(train):
    manifest, segments = train(IMAGES)
    means = check(manifest, segments, len(IMAGES))
    assert min(means[name] for name in ("proposal_boxes", "boxes", "masks")) > 0
    model = last_model(segments)
    detector = Detector(model, model.with_suffix(".json"), {"score_threshold": 0.0})
    for shape in ((1, 1, 3), (1, 120, 3), (64, 96, 3)):
        for detection in detector.detect(np.full(shape, 255, np.uint8)):
            y1, x1, y2, x2 = detection.crop
            assert 0 <= y1 < y2 <= shape[0] and 0 <= x1 < x2 <= shape[1]
            assert detection.mask.any() and 0 <= detection.score <= 1


@pytest.mark.long
@pytest.mark.slow
def test_no_image_has_an_instance(train):
    """The loss of boxes and masks is 0; what is learned is background."""
    manifest, segments = train(EMPTY)
    means = check(manifest, segments, len(EMPTY))
    assert [means[name] for name in ("proposal_boxes", "boxes", "masks")] == [0, 0, 0]
    assert max(means["objectness"], means["classes"]) < 0.1
