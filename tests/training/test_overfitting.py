"""A few images are learned by heart: their instances are found, and nothing else."""

import json

import numpy as np
import pytest
from small_images import nuclei

from gigatile.instances.label_images import instances_of_labels
from gigatile.records.instances import AnnotatedImage, encode_annotated, encode_png
from gigatile.records.shard_layout import Source
from gigatile.records.tfrecord import write_records
from gigatile.records.writing import write_shards
from gigatile.settings.shards import ShardSettings
from gigatile.tasks.instance_segmentation.records import record_id
from gigatile.tasks.instance_segmentation.validation import validate
from gigatile.training.segments import Segment

EPOCHS = 45
DETECTION = {
    # Larger than the images, which are padded to another size for detection.
    "canvas": [160, 128],
    "flips": "none",
    "anchor_sizes": [12, 24, 48, 96, 192],
    "rpn_pre_nms_topk_train": 200,
    "rpn_post_nms_topk_train": 100,
    "roi_batch_size_per_image": 64,
}
TRAIN = {
    "model": "mask_small",
    "batch_size": 4,
    "learning_rate": 0.003,
    "schedule": "cosine",
    "warmup_steps": 10,
    "clip_norm": 5.0,
}


def draw(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return an image and its label image; every second one is dark, like fluorescence."""
    pixels, labels = nuclei(number, count=4)
    return (255 - pixels) // 4 if number % 2 else pixels, labels


@pytest.mark.long
@pytest.mark.slow
def test_eight_images_are_learned_by_heart(launcher, tmp_path):
    sources = []
    for number in range(8):
        pixels, labels = draw(number)
        name = f"I{number}"
        instances = instances_of_labels(labels)
        image = AnnotatedImage(encode_png(pixels), name, *labels.shape, None, instances)
        write_records(tmp_path / name, [encode_annotated(image)])
        sources.append(Source(name, name, "", tmp_path / name))
    splits = {"train": sources, "valid": sources}
    shards = tmp_path / "shards"
    write_shards(splits, ShardSettings(), shards, unit="image", record_id=record_id)
    options = {
        "manifest": shards / "manifest.json",
        "ranks": 1,
        "epochs": EPOCHS,
        "task": "instance_segmentation",
        "task-settings": json.dumps({"instances": {}, "detection": DETECTION}),
        "settings": json.dumps(TRAIN | {"decay_epochs": [EPOCHS]}),
        "checkpoints": tmp_path / "checkpoints",
        "out": tmp_path / "segments",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    done = launcher.run(1, "scripts/train.py", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    validation = validate(
        Segment(tmp_path / "segments", EPOCHS), shards / "manifest.json", {"detection": {}}
    )
    assert validation.count == 8 and validation.means["mask_ap50"] >= 0.95
    # If detection saw the dark images otherwise than training, boxes and masks would be less exact:
    # 0.3 instead of 0.9.
    assert validation.means["mask_ap75"] >= 0.8
