"""Sheets of images with annotated instances."""

from pathlib import Path

import pytest

from gigatile.cohort.images import Image, common_mpp, with_scale_of_images
from gigatile.settings.whole import load_settings


@pytest.mark.parametrize(
    ("scales", "common"),
    [
        ([], None),
        ([None, None], None),
        ([0.25], 0.25),
        ([0.26, 0.25, 0.252], 0.252),
        ([0.25, None], None),
        ([0.25, 0.27], None),
    ],
)
def test_common_scale_of_images(scales, common):
    images = [
        Image(f"I{number}", "P", Path("a.png"), None, mpp, "", "", number)
        for number, mpp in enumerate(scales)
    ]
    assert common_mpp(images) == common


@pytest.mark.parametrize(
    ("keys", "scale"),
    [
        ({}, 0.25),
        ({"slide_instances": {"mpp": 1}}, 1),
        ({"instances": {"categories": ["a"], "mpp": 0.5}}, None),
    ],
)
def test_slides_are_read_at_the_scale_of_the_training_images(keys, scale):
    """The test image has another scale."""
    config = {"run": "a", "samples": "a.tsv", "task": "instance_segmentation"}
    settings = load_settings(config | {"instances": {"categories": ["a"]}} | keys)
    images = [
        Image(f"I{mpp}", f"P{mpp}", Path("a.png"), None, mpp, split, "", 2)
        for mpp, split in ((0.25, "train"), (0.251, "train"), (2, "test"))
    ]
    assert with_scale_of_images(settings, images).slide_instances.mpp == pytest.approx(
        scale, abs=0.002
    )
