"""Masks in COCO's format from files: polygons or run-length codes, checked before they are decoded.

https://cocodataset.org/#format-data. pycocotools decodes without checks: it writes outside its
memory if a code is damaged, and takes memory for the length of a polygon.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from gigatile.instances.run_lengths import check_runs, decode_runs

# A box or a polygon may end this far outside its image, in pixels: from rounding.
TOLERANCE = 1.0


def runs_of_segmentation(segmentation: Any, height: int, width: int) -> np.ndarray:
    """Return the lengths of the runs of a mask: (n,) int64, background first.

    Args:
        segmentation: a list of polygons, or a run-length code, as lists or as compressed text.
        height, width: of the image.

    Raises:
        ValueError: it is neither, or leaves the image.
    """
    if isinstance(segmentation, list):
        polygons = _checked_polygons(segmentation, height, width)
        return decode_runs(
            coco_mask.merge(coco_mask.frPyObjects(polygons, height, width))["counts"]
        )
    if not isinstance(segmentation, Mapping):
        raise ValueError("has no mask: segmentation must be polygons or a run-length code")
    size, counts = segmentation.get("size"), segmentation.get("counts")
    if size != [height, width]:
        raise ValueError(f"the size of its mask is {size}; must be [{height}, {width}]")
    if isinstance(counts, list):
        if not all(isinstance(run, int | np.integer) for run in counts):
            raise ValueError("a run of its mask is not a whole number")
        return check_runs(np.array(counts, object), height, width)
    if isinstance(counts, str):
        counts = counts.encode()
    if not isinstance(counts, bytes):
        raise ValueError("the run-length code of its mask is damaged")
    return check_runs(decode_runs(counts), height, width)


def _checked_polygons(polygons: list[Any], height: int, width: int) -> list[list[float]]:
    checked = []
    for polygon in polygons:
        if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2:
            raise ValueError("a polygon must be a list of x and y of at least three points")
        if not all(type(value) in (int, float) and math.isfinite(value) for value in polygon):
            raise ValueError("a polygon has a coordinate that is not a number")
        x, y = polygon[::2], polygon[1::2]
        check_inside("polygon", min(x), min(y), max(x), max(y), height, width)
        checked.append([float(value) for value in polygon])
    if not checked:
        raise ValueError("its mask is empty")
    return checked


def check_inside(
    what: str, left: float, top: float, right: float, bottom: float, height: int, width: int
) -> None:
    """Check that a shape leaves its image by `TOLERANCE` at most.

    Raises:
        ValueError: it does not; names the shape.
    """
    low, high = min(left, top), max(right - width, bottom - height)
    if low < -TOLERANCE or high > TOLERANCE:
        raise ValueError(
            f"{what} from ({left:g}, {top:g}) to ({right:g}, {bottom:g}) leaves the image of "
            f"{width} × {height} pixels"
        )
