"""Masks as run-length codes: equal to pycocotools', with memory for their own pixels only."""

import tracemalloc
from pathlib import Path

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from pycocotools import mask as coco_mask

from gigatile.files import write_json
from gigatile.instances.annotations import image_rle
from gigatile.instances.coco_file import CocoFile
from gigatile.instances.run_lengths import pixels_of_runs, runs_of_pixels


@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(1, 30), st.floats(0, 1))
@example(0, 5, 7, 1.0)
@example(0, 5, 7, 0.0)
def test_codes_are_those_of_pycocotools(seed, height, width, share):
    rng = np.random.default_rng(seed)
    top, left = rng.integers(0, height), rng.integers(0, width)
    bottom, right = rng.integers(top, height) + 1, rng.integers(left, width) + 1
    mask = np.zeros((height, width), np.uint8)
    mask[top:bottom, left:right] = rng.random((bottom - top, right - left)) < share
    crop = np.array([top, left, bottom, right], np.int32)
    code = coco_mask.encode(np.asfortranarray(mask))
    expected = {"size": [height, width], "counts": code["counts"].decode()}
    assert image_rle(mask[top:bottom, left:right], crop, height, width) == expected
    pixels = np.flatnonzero(mask.ravel(order="F"))
    assert np.array_equal(pixels_of_runs(runs_of_pixels(pixels, mask.size)), pixels)


def test_many_instances_of_a_large_image_take_little_memory(tmp_path: Path) -> None:
    side, count = 6000, 200
    square = [[10.0, 20.0, 40.0, 20.0, 40.0, 60.0, 10.0, 60.0]]
    annotation = {"image_id": 1, "category_id": 1, "segmentation": square}
    write_json(
        tmp_path / "coco.json",
        {
            "images": [{"id": 1, "file_name": "a.png", "height": side, "width": side}],
            "annotations": [annotation | {"id": number} for number in range(count)],
            "categories": [{"id": 1, "name": "nucleus"}],
        },
    )
    file = CocoFile(tmp_path / "coco.json")
    tracemalloc.start()
    try:
        instances, faults = file.instances(tmp_path / "a.png", side, side, ["nucleus"])
        for index in range(count):
            instances.image_rle(index, side, side)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not faults and instances.crops.tolist() == [[20, 10, 60, 40]] * count
    assert peak < side * side / 4
