"""Truth and detections as objects in COCO's formats.

https://cocodataset.org/#format-data and https://cocodataset.org/#format-results.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gigatile.instances.annotations import Instances, image_rle
from gigatile.instances.detection import Detection

# Decimals of scores and boxes: finer than what they mean, and the files stay small.
SCORE_DECIMALS, BOX_DECIMALS = 6, 3


class CocoTruth:
    """Collects images and their instances in COCO's annotation format."""

    def __init__(self, categories: Sequence[str]) -> None:
        self._categories = categories
        self._images: list[dict[str, Any]] = []
        self._annotations: list[dict[str, Any]] = []

    def add(
        self,
        name: str,
        height: int,
        width: int,
        instances: Instances,
        region: Sequence[float] | None = None,
    ) -> int:
        """Add an image; return its id.

        Args:
            name: its id in the sheet.
            height, width: in pixels.
            instances: its instances.
            region: left, top, right, bottom of a region of a slide, in pixels of level 0.
        """
        number = len(self._images) + 1
        size = {"height": height, "width": width}
        of_slide = {} if region is None else {"region": list(region)}
        self._images.append({"id": number, "file_name": name, **size, **of_slide})
        for index in range(len(instances)):
            pixels = instances.mask(index)
            self._annotations.append(
                {
                    "id": len(self._annotations) + 1,
                    "image_id": number,
                    "category_id": int(instances.classes[index]),
                    "iscrowd": int(instances.crowd[index]),
                    "area": int(pixels.sum()),
                    "bbox": coco_box(instances.boxes[index]),
                    "segmentation": image_rle(pixels, instances.crops[index], height, width),
                }
            )
        return number

    def to_json(self) -> dict[str, Any]:
        """Return the truth."""
        categories = [
            {"id": number, "name": name} for number, name in enumerate(self._categories, 1)
        ]
        return {
            "images": self._images,
            "annotations": self._annotations,
            "categories": categories,
        }


def coco_results(
    image: int, height: int, width: int, detections: Iterable[Detection]
) -> list[dict[str, Any]]:
    """Return detections of an image in COCO's result format.

    Args:
        image: its id in the truth.
        height, width: in pixels.
        detections: of the image.
    """
    results = []
    for detection in detections:
        crop = np.array(detection.crop)
        results.append(
            {
                "image_id": image,
                "category_id": detection.category + 1,
                "bbox": coco_box(crop if detection.box is None else detection.box),
                "segmentation": image_rle(detection.mask, crop, height, width),
                "score": round(detection.score, SCORE_DECIMALS),
            }
        )
    return results


def coco_box(box: np.ndarray) -> list[float]:
    """Return a box (y1, x1, y2, x2) as x, y, width and height."""
    y1, x1, y2, x2 = np.asarray(box, np.float64).tolist()
    return [round(value, BOX_DECIMALS) for value in (x1, y1, x2 - x1, y2 - y1)]
