"""The truth and the detections of a cohort in COCO's format, checked before they are scored.

https://cocodataset.org/#format-data and https://cocodataset.org/#format-results.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from gigatile.errors import all_faults
from gigatile.instances.coco_masks import runs_of_segmentation
from gigatile.instances.run_lengths import decode_runs, encode_runs, pixels_of_runs


@dataclass(frozen=True)
class CocoData:
    """The truth and the detections of a cohort, with consecutive ids.

    Attributes:
        images: the ids of the n images in ascending order; the entries have 1 to n as `image_id`.
        sizes: (n, 2) int64, height and width of the images in pixels.
        categories: the names of the k categories in the order of their ids; the entries have 1 to k
            as `category_id`.
        annotations: the truth: id (from 1), image_id, category_id, iscrowd, area in pixels, bbox
            (x, y, width, height in pixels) and segmentation, a compressed run-length code.
        results: the detections, with the same fields except iscrowd, and with score. The area is
            that of the mask.
    """

    images: Sequence[int | str]
    sizes: np.ndarray
    categories: Sequence[str]
    annotations: Sequence[dict[str, Any]]
    results: Sequence[dict[str, Any]]


def read_coco(truth: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> CocoData:
    """Check truth and detections; return them with consecutive ids and with run-length codes.

    Images and categories are in the order of their ids, as in pycocotools. Annotations are
    numbered, because pycocotools takes the id 0 for "not matched".

    Args:
        truth: images, annotations and categories in COCO's format; masks as polygons or run-length
            codes. An annotation without `area` or `bbox` gets those of its mask.
        results: in COCO's format: image_id, category_id, score, segmentation and bbox. A detection
            without `bbox` gets that of its mask.

    Raises:
        UserError: an id is unknown or not unique, a mask, box or score is not valid, or there is no
            image or category; lists all faults.
    """
    images = {entry["id"]: entry for entry in truth["images"]}
    names = {entry["id"]: str(entry["name"]) for entry in truth["categories"]}
    faults = [
        f"{kind}: {len(truth[kind])} entries, but {len(different)} different {what}"
        for kind, what, different in (
            ("images", "ids", set(images)),
            ("categories", "ids", set(names)),
            ("categories", "names", set(names.values())),
        )
        if len(different) < len(truth[kind]) or not truth[kind]
    ]
    if faults:
        raise all_faults("the annotations cannot be evaluated:", faults)
    image_numbers = {image: number for number, image in enumerate(sorted(images), 1)}
    category_numbers = {category: number for number, category in enumerate(sorted(names), 1)}

    def read_all(
        kind: str,
        entries: Sequence[Mapping[str, Any]],
        read_rest: Callable[[Mapping[str, Any], int], dict[str, Any]],
    ) -> list[dict[str, Any]]:
        checked = []
        for index, entry in enumerate(entries):
            try:
                image = _look_up(entry, "image_id", image_numbers)
                category = _look_up(entry, "category_id", category_numbers)
                size = images[entry["image_id"]]["height"], images[entry["image_id"]]["width"]
                code, area = _read_mask(entry.get("segmentation"), *size)
                bbox = entry.get("bbox")
                box = coco_mask.toBbox(code).tolist() if bbox is None else _numbers(bbox, 4)
                checked.append(
                    {
                        "id": index + 1,
                        "image_id": image,
                        "category_id": category,
                        "bbox": box,
                        "segmentation": code,
                        **read_rest(entry, area),
                    }
                )
            except ValueError as error:
                faults.append(f"{kind}[{index}]: {error}")
        return checked

    def read_annotation(entry: Mapping[str, Any], area: int) -> dict[str, Any]:
        (given,) = _numbers([entry.get("area", area)], 1)
        return {"area": given, "iscrowd": int(bool(entry.get("iscrowd", 0)))}

    def read_result(entry: Mapping[str, Any], area: int) -> dict[str, Any]:
        (score,) = _numbers([entry.get("score")], 1)
        return {"area": float(area), "score": score}

    annotations = read_all("annotations", truth["annotations"], read_annotation)
    detections = read_all("results", results, read_result)
    if faults:
        raise all_faults("truth and detections cannot be evaluated:", faults)
    ordered = sorted(images)
    sizes = [(images[image]["height"], images[image]["width"]) for image in ordered]
    return CocoData(
        images=ordered,
        sizes=np.array(sizes, np.int64),
        categories=[names[category] for category in sorted(names)],
        annotations=annotations,
        results=detections,
    )


def mask_pixels(code: Mapping[str, Any]) -> np.ndarray:
    """Return the pixels of a mask: see `pixels_of_runs`.

    Args:
        code: a compressed run-length code of `CocoData`.
    """
    return pixels_of_runs(decode_runs(code["counts"]))


def _look_up(entry: Mapping[str, Any], key: str, numbers: Mapping[Any, int]) -> int:
    value = entry.get(key)
    try:
        return numbers[value]
    except (KeyError, TypeError):  # unknown, or not hashable
        raise ValueError(f"the {key} {value!r} is not in the annotations") from None


def _numbers(values: Any, count: int) -> list[float]:
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != count or not all(map(math.isfinite, numbers)):
        what = "bbox (x, y, width, height)" if count > 1 else "score or area"
        raise ValueError(f"{what}: found {values!r}; must be finite numbers")
    return numbers


def _read_mask(segmentation: Any, height: int, width: int) -> tuple[dict[str, Any], int]:
    """Return a mask as compressed run-length code, and its number of pixels.

    Raises:
        ValueError: it is not a mask of an image of this size.
    """
    runs = runs_of_segmentation(segmentation, height, width)
    counts = encode_runs(runs, height, width)
    return {"size": [height, width], "counts": counts}, int(runs[1::2].sum())
