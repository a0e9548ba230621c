"""Truth and detections in COCO's formats: what is read, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycocotools import mask as coco_mask
from random_instances import SQUARE, annotation, detection, one_image

from gigatile.errors import UserError
from gigatile.evaluation import coco
from gigatile.evaluation.coco import average_precision
from gigatile.evaluation.coco_input import mask_pixels, read_coco

SEEDS = st.integers(0, 2**32 - 1)


def test_the_id_0_and_missing_fields_of_annotations():
    """pycocotools takes the id 0 for no match, and needs iscrowd."""
    bare = {key: annotation(0, 1, 1, SQUARE)[key] for key in ("id", "image_id", "category_id")}
    truth = one_image([bare | {"segmentation": [[5, 5, 15, 5, 15, 15, 5, 15]]}])
    truth["images"][0]["id"] = truth["annotations"][0]["image_id"] = "slide a"
    result = detection("slide a", 1, SQUARE, 0.3)
    del result["bbox"]
    data = read_coco(truth, [result])
    assert data.annotations[0]["area"] == 100 and data.annotations[0]["bbox"] == [5, 5, 10, 10]
    assert data.results[0]["bbox"] == [5, 5, 10, 10] and data.images == ["slide a"]
    assert data.categories == ["c1", "c2"] and data.sizes.tolist() == [[20, 20]]
    for kind in coco.KINDS:
        assert average_precision(truth, [result], kind)["ap"] == pytest.approx(1)


@given(SEEDS, st.integers(1, 60), st.integers(1, 60), st.floats(0, 1))
def test_pixels_of_a_mask(seed, height, width, share):
    mask = np.random.default_rng(seed).random((height, width)) < share
    code = coco_mask.encode(np.asfortranarray(mask, np.uint8))
    assert np.array_equal(mask_pixels(code), np.flatnonzero(mask.ravel(order="F")))


def test_pixels_of_a_mask_in_a_large_image():
    mask = np.zeros((9000, 4000), np.uint8, order="F")
    mask[8999, 3999] = mask[17:400, 3000] = 1
    code = coco_mask.encode(mask)
    assert np.array_equal(mask_pixels(code), np.flatnonzero(mask.ravel(order="F")))


def test_runs_as_a_list_of_numbers():
    truth = one_image([annotation(1, 1, 1, SQUARE)])
    flat = SQUARE.ravel(order="F")
    edges = np.flatnonzero(np.diff(flat)) + 1
    runs = np.diff([0, *edges, 400]).tolist()
    truth["annotations"][0]["segmentation"] = {"size": [20, 20], "counts": runs}
    assert average_precision(truth, [detection(1, 1, SQUARE, 1)], "segm")["ap"] == pytest.approx(1)


def test_faults_of_the_input_are_listed_together():
    truth = one_image([annotation(1, 1, 1, SQUARE), annotation(2, 1, 1, SQUARE)])
    truth["annotations"][1]["segmentation"] = {"size": [20, 30], "counts": "x"}
    good = detection(1, 1, SQUARE, 0.5)
    code = good["segmentation"]["counts"]
    damaged, sum_is_wrong = "code of its mask is damaged", "do not add up to 20 × 20 pixels"
    codes = {damaged: ("", "é", code + "P", "P" * 8 + "0" + code)}
    codes[sum_is_wrong] = ([3, 4], [-1, 401], code + "4")
    faulty = [
        ("the image_id 8 is not in", good | {"image_id": 8}),
        ("the category_id [] is not in", good | {"category_id": []}),
        ("score or area: found", good | {"score": float("nan")}),
        ("must be finite", good | {"bbox": [1, 2, 3]}),
        ("has no mask", {k: v for k, v in good.items() if k != "segmentation"}),
        ("at least three points", good | {"segmentation": [[1, 2, 3, 4]]}),
        ("leaves the image", good | {"segmentation": [[1, 2, 3e9, 4, 5, 6e9]]}),
        *(
            (message, good | {"segmentation": {"size": [20, 20], "counts": counts}})
            for message, several in codes.items()
            for counts in several
        ),
    ]
    with pytest.raises(UserError) as raised:
        read_coco(truth, [result for _, result in faulty])
    lines = str(raised.value).splitlines()
    assert len(lines) == 2 + len(faulty)
    assert "annotations[1]: the size of its mask is [20, 30]; must be [20, 20]" in lines[1]
    for number, (line, (text, _)) in enumerate(zip(lines[2:], faulty, strict=True)):
        assert f"results[{number}]: " in line and text in line
    for part, message in (("images", "images: 2 entries, but 1"), ("categories", "but 1 differ")):
        with pytest.raises(UserError, match=message):
            read_coco(truth | {part: [truth[part][0]] * 2}, [])
    with pytest.raises(UserError, match="images: 0 entries"):
        read_coco(truth | {"images": [], "annotations": []}, [])
    names = [{"id": 1, "name": "nucleus"}, {"id": 2, "name": "nucleus"}]
    with pytest.raises(UserError, match="categories: 2 entries, but 1 different names"):
        read_coco(truth | {"categories": names, "annotations": []}, [])


def test_order_of_images_and_categories_is_that_of_their_ids():
    truth = one_image(categories=(9, 2))
    truth["images"] = [{"id": 30, "height": 20, "width": 20}, {"id": 4, "height": 9, "width": 8}]
    # The area of an annotation is kept: that of a polygon is not the number of pixels.
    truth["annotations"] = [annotation(5, 30, 9, SQUARE) | {"area": 97.5}]
    data = read_coco(truth, [detection(30, 2, SQUARE, 1)])
    assert data.images == [4, 30] and data.sizes.tolist() == [[9, 8], [20, 20]]
    assert data.categories == ["c2", "c9"]
    (entry,), (result,) = data.annotations, data.results
    assert (entry["image_id"], entry["category_id"], entry["area"]) == (2, 2, 97.5)
    assert (result["image_id"], result["category_id"], result["area"]) == (2, 1, 100)
