"""Random truth and detections of instance segmentation in COCO's formats, for tests."""

import contextlib
import copy
import io
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval


def encode(mask: np.ndarray) -> dict[str, Any]:
    """Return a mask (height, width) as run-length code with text as counts."""
    code = coco_mask.encode(np.asfortranarray(mask, np.uint8))
    return {"size": list(code["size"]), "counts": code["counts"].decode()}


def decode(segmentation: Any, image: dict[str, Any]) -> np.ndarray:
    """Return any kind of mask of an annotation as (height, width) uint8."""
    height, width = image["height"], image["width"]
    if isinstance(segmentation, list):
        code = coco_mask.merge(coco_mask.frPyObjects(segmentation, height, width))
    elif isinstance(segmentation["counts"], list):
        code = coco_mask.frPyObjects(segmentation, height, width)
    else:
        code = segmentation
    return coco_mask.decode(code)


def annotation(number: int, image: int | str, category: int, mask: np.ndarray, crowd: bool = False):
    """Return an annotation in COCO's format."""
    code = encode(mask)
    return {
        "id": number,
        "image_id": image,
        "category_id": category,
        "iscrowd": int(crowd),
        "area": int(mask.sum()),
        "bbox": coco_mask.toBbox(code).tolist(),
        "segmentation": code,
    }


def detection(image: int | str, category: int, mask: np.ndarray, score: float) -> dict[str, Any]:
    """Return a detection in COCO's result format."""
    code = encode(mask)
    box = coco_mask.toBbox(code).tolist()
    return {
        "image_id": image,
        "category_id": category,
        "score": score,
        "bbox": box,
        "segmentation": code,
    }


def rectangle(random: np.random.Generator, size: tuple[int, int], largest: int) -> np.ndarray:
    """Return a random rectangle in an image as mask (height, width) uint8."""
    mask = np.zeros(size, np.uint8)
    sides = random.integers(2, largest, 2)
    top, left = (int(random.integers(0, max(free, 1))) for free in size - sides)
    mask[top : top + sides[0], left : left + sides[1]] = 1
    return mask


SQUARE = np.zeros((20, 20), np.uint8)
SQUARE[5:15, 5:15] = 1


def one_image(annotations: Any = (), categories: tuple[int, ...] = (1, 2)) -> dict[str, Any]:
    """Return the truth of an image of the size of `SQUARE`."""
    return {
        "images": [{"id": 1, "height": 20, "width": 20}],
        "annotations": list(annotations),
        "categories": [{"id": number, "name": f"c{number}"} for number in categories],
    }


def random_cohort(
    random: np.random.Generator,
    images: int = 6,
    categories: tuple[int, ...] = (3, 7),
    size: tuple[int, int] = (48, 40),
    crowds: float = 0.15,
    decimals: int = 1,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return truth and detections: shifted copies of instances, and false ones.

    Args:
        random: source of randomness.
        images: number of images; their ids are not consecutive.
        categories: the ids of the categories.
        size: height and width of the images.
        crowds: share of annotations that are crowds.
        decimals: of the scores; with few, many are equal.
    """
    annotations, results = [], []
    ids = [int(number) for number in random.permutation(3 * images)[:images]]
    for image in ids:
        for _ in range(random.integers(0, 7)):
            mask = rectangle(random, size, 36)
            category = int(random.choice(categories))
            crowd = bool(random.random() < crowds)
            annotations.append(annotation(len(annotations) + 1, image, category, mask, crowd))
            for _ in range(random.integers(0, 3)):
                shift = random.integers(-1, 2, 2)
                moved = np.roll(mask, shift, (0, 1))
                predicted = category if random.random() < 0.8 else int(random.choice(categories))
                score = round(float(random.random()), decimals)
                results.append(detection(image, predicted, moved, score))
        for _ in range(random.integers(0, 3)):
            mask = rectangle(random, size, 20)
            score = round(float(random.random()), decimals)
            results.append(detection(image, int(random.choice(categories)), mask, score))
    order = random.permutation(len(results))
    truth = {
        "images": [{"id": image, "height": size[0], "width": size[1]} for image in ids],
        "annotations": annotations,
        "categories": [{"id": number, "name": f"category {number}"} for number in categories],
    }
    return truth, [results[index] for index in order]


def shifted_copies(
    truth: dict[str, Any], random: np.random.Generator
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return real truth, and detections made from it: shifted, missed, false and misclassified."""
    images = {image["id"]: image for image in truth["images"]}
    categories = [category["id"] for category in truth["categories"]]
    results = []
    for entry in truth["annotations"]:
        if random.random() < 0.15:
            continue
        mask = decode(entry["segmentation"], images[entry["image_id"]])
        mask = np.roll(mask, random.integers(-2, 3, 2), (0, 1))
        category = entry["category_id"] if random.random() < 0.9 else int(random.choice(categories))
        score = round(float(random.random()), 2)
        results.append(detection(entry["image_id"], category, mask, score))
        if random.random() < 0.2:
            other = int(random.choice(list(images)))
            if images[other]["height"] == mask.shape[0] and images[other]["width"] == mask.shape[1]:
                results.append(detection(other, category, mask, round(float(random.random()), 2)))
    return truth, results


def pycocotools_evaluation(
    truth: dict[str, Any], results: list[dict[str, Any]], kind: str, max_detections: int = 100
) -> COCOeval:
    """Return the accumulated evaluation of pycocotools, used as its documentation says."""
    part = "bbox" if kind == "bbox" else "segmentation"
    keys = ("image_id", "category_id", "score", part)
    with contextlib.redirect_stdout(io.StringIO()):
        reference = COCO()
        reference.dataset = copy.deepcopy(truth)
        reference.createIndex()
        detections = reference.loadRes(
            [{key: copy.deepcopy(result[key]) for key in keys} for result in results]
        )
        evaluation = COCOeval(reference, detections, kind)
        evaluation.params.maxDets = [1, 10, max_detections]
        evaluation.evaluate()
        evaluation.accumulate()
        if max_detections == 100:
            evaluation.summarize()
    return evaluation
