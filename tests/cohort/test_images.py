"""Sheets of images with annotated instances."""

from pathlib import Path

import pytest

from gigatile.cohort.images import Image, common_mpp


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
