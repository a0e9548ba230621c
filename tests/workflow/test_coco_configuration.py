"""demo/coco.yaml: its values are those of detectron2, and it runs on real images of COCO."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from clones import ROOT, Clone
from keras.models import load_model

from gigatile.cohort.splits import split_of
from gigatile.models.mask_rcnn import build_mask_rcnn, parts_of
from gigatile.settings.train import TrainSettings
from gigatile.settings.whole import Settings, load_settings

FILE = ROOT / "demo/coco.yaml"
# The configuration is for 8 GPUs. Here: one rank, one image of at most 128 x 224 pixels per step,
# one step from random weights, in single precision, as half precision takes minutes without a GPU;
# and shares of the splits that suit 32 images.
SMALLER = """\
run: smaller
split: {train: 0.6, valid: 0.2, test: 0.2}
instances: {jobs: 1}
detection: {short_edge: 128, train_short_edges: [112, 128], max_edge: 224, canvas: [224, 224]}
train:
  weights: none
  ranks_per_node: 1
  cores_per_rank: 1
  batch_size: 1
  epochs: 1
  limit_batches: 1
  mixed_precision: false
evaluate: {resamples: 1000}
"""
# Base-RCNN-FPN.yaml, mask_rcnn_R_50_FPN_1x.yaml and the defaults of detectron2.
DETECTION = {
    "short_edge": 800,  # INPUT.MIN_SIZE_TEST
    "train_short_edges": (640, 672, 704, 736, 768, 800),  # INPUT.MIN_SIZE_TRAIN
    "max_edge": 1333,  # INPUT.MAX_SIZE_TRAIN, MAX_SIZE_TEST
    "flips": "horizontal",  # INPUT.RANDOM_FLIP
    "scale_jitter": 0,
    "intensity": 0,
    "frozen_stages": 2,  # MODEL.BACKBONE.FREEZE_AT
    "anchor_sizes": (32, 64, 128, 256, 512),  # MODEL.ANCHOR_GENERATOR
    "anchor_ratios": (0.5, 1, 2),
    "rpn_batch_size_per_image": 256,  # MODEL.RPN
    "rpn_pre_nms_topk_train": 2000,
    "rpn_pre_nms_topk_test": 1000,
    "rpn_post_nms_topk_train": 1000,
    "rpn_post_nms_topk_test": 1000,
    "roi_batch_size_per_image": 512,  # MODEL.ROI_HEADS
    "score_threshold": 0.05,
    "nms_threshold": 0.5,
    "detections_per_image": 100,  # TEST
}
TRAIN = {
    "optimizer": "sgd",
    "learning_rate": 0.02,  # SOLVER.BASE_LR, for IMS_PER_BATCH
    "reference_batch": 16,
    "batch_size": 16,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "clip_norm": None,  # SOLVER.CLIP_GRADIENTS.ENABLED: False
    "schedule": "steps",
    "decay_factor": 0.1,  # SOLVER.GAMMA
    "warmup_steps": 1000,
    "warmup_factor": 0.001,
    "epochs": 12,
}


def settings() -> Settings:
    return load_settings(yaml.safe_load(FILE.read_text()), "demo/coco.yaml")


def test_values_are_those_of_detectron2():
    detection, train = settings().detection.model_dump(), settings().train.model_dump()
    assert {name: detection[name] for name in DETECTION} == DETECTION
    assert {name: train[name] for name in TRAIN} == TRAIN
    # What is not compared: the canvas, which the largest image fits on.
    assert detection.keys() - DETECTION.keys() == {"canvas", "scale"}
    assert min(detection["canvas"]) >= 1333


def test_schedule_is_that_of_detectron2_to_three_percent():
    """In steps, for the 118,287 images of train2017; detectron2 leaves out 1,021 of them."""
    train, split = settings().train, settings().split
    per_epoch = 118_287 * split.train / train.batch_size
    steps = [epochs * per_epoch for epochs in (*train.decay_epochs, train.epochs)]
    np.testing.assert_allclose(steps, [60_000, 80_000, 90_000], rtol=0.03)


def test_no_training_image_of_coco_is_a_test_image():
    """COCO's ids are numbers up to 581,929; every 37th one is tried."""
    split = settings().split
    splits = [split_of(f"{number:012d}", split) for number in range(1, 581_930, 37)]
    assert set(splits) == {"train", "valid"} and 100 < splits.count("valid") < 220


@pytest.fixture(scope="module")
def run(tmp_path_factory, shared_data) -> Path:
    """Return the results of the whole workflow on 32 images of COCO."""
    clone = Clone(tmp_path_factory.mktemp("coco"))
    clone.run("gigatile", "init", str(shared_data / "coco"), "--out", "coco")
    clone.write("smaller.yaml", SMALLER)
    clone.snakemake("--cores", "1", "--configfile", "demo/coco.yaml", "smaller.yaml")
    return clone.folder / "results/smaller"


@pytest.mark.long
@pytest.mark.slow
def test_configuration_runs_from_images_to_the_report(run):
    described = json.loads((run / "segments/0001.json").read_text())
    assert described["train"]["model"] == "mask_resnet50" and described["steps"] == 1
    assert len(described["instances"]["categories"]) == 80
    (epoch,) = described["history"]
    assert np.isfinite(epoch).all() and min(epoch) > 0
    metrics = json.loads((run / "evaluation/metrics.json").read_text())
    assert metrics["instances"] > 0 and metrics["mask"]["ap"]["value"] < 0.1
    assert "mask_resnet50" in (run / "report/index.html").read_text()


@pytest.mark.long
@pytest.mark.slow
def test_frozen_weights_are_the_initial_ones(run):
    seed = json.loads((run / "segments/0001.json").read_text())["train"]["seed"]
    train = TrainSettings(model="mask_resnet50", seed=seed)
    initial = parts_of(build_mask_rcnn(train, 80, 3, 2).model).trunk
    trained = parts_of(load_model(run / "model/model.keras", compile=False)).trunk
    changed, fixed = set(), set()
    for before, after in zip(initial.weights, trained.weights, strict=True):
        assert before.path.split("/")[-2:] == after.path.split("/")[-2:]
        equal = np.array_equal(before, after)
        (fixed if equal else changed).add(after.path.split("/")[-2])
    assert any(name.startswith("conv2_block1") for name in fixed)
    assert not any(name.startswith(("conv1", "conv2")) or name.endswith("_bn") for name in changed)
    assert {"conv3_block1_1_conv", "conv5_block3_3_conv", "lateral_2", "rpn"} <= changed
