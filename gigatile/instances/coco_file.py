"""Annotations in COCO's format: one JSON file for many images.

https://cocodataset.org/#format-data, with polygons or run-length codes as masks.
"""

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from gigatile.errors import UserError
from gigatile.instances.annotations import Instances, empty_instances, stack_instances
from gigatile.instances.coco_masks import check_inside, runs_of_segmentation
from gigatile.instances.run_lengths import pixels_of_runs


class CocoFile:
    """A file of annotations.

    Attributes:
        categories: the names by id.
        file_names: of the images, in the order of the file.
    """

    def __init__(self, path: Path) -> None:
        """Read a file.

        Raises:
            UserError: it is not in COCO's format, or has an id twice.
        """
        self._path = path
        try:
            content = json.loads(path.read_bytes())
        except ValueError as error:
            raise UserError(f"{path}: not valid JSON ({error})") from None
        except RecursionError:
            raise UserError(f"{path}: not valid JSON (nested too deeply)") from None
        parts = {
            name: self._part(content, name) for name in ("images", "annotations", "categories")
        }
        self.categories = {entry["id"]: str(entry.get("name", "")) for entry in parts["categories"]}
        self._images: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for entry in parts["images"]:
            name = PurePosixPath(str(entry.get("file_name", "")).replace("\\", "/"))
            self._images[name.name].append(entry | {"parts": name.parts})
        self.file_names = [str(entry.get("file_name", "")) for entry in parts["images"]]
        self._annotations: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        for entry in parts["annotations"]:
            self._annotations[_key(entry.get("image_id"))].append(entry)
        known = {_key(entry["id"]) for entry in parts["images"]}
        unknown = [image for image in self._annotations if image not in known]
        if unknown:
            raise UserError(
                f"{path}: annotations have an image_id that no image has: {unknown[0]!r} and "
                f"{len(unknown) - 1} others"
            )

    def _part(self, content: Any, name: str) -> list[dict[str, Any]]:
        """Return a list of the file; its entries are objects with different ids."""
        part = content.get(name) if isinstance(content, dict) else None
        if not isinstance(part, list) or not all(isinstance(entry, dict) for entry in part):
            raise UserError(
                f"{self._path}: not in COCO's format: must be an object with the lists images, "
                f"annotations and categories; {name} is missing or not a list of objects"
            )
        seen = set()
        for index, entry in enumerate(part):
            if not isinstance(entry.get("id"), int | str) or isinstance(entry.get("id"), bool):
                raise UserError(f"{self._path}: {name}[{index}]: has no id")
            if entry["id"] in seen:
                raise UserError(f"{self._path}: {name}: the id {entry['id']!r} appears twice")
            seen.add(entry["id"])
        return part

    def instances(
        self, image: Path, height: int, width: int, categories: Sequence[str]
    ) -> tuple[Instances, list[str]]:
        """Return the instances of an image, and what is wrong with its annotations.

        Args:
            image: path of the image; the end of it must be the `file_name` of one entry.
            height, width: of the image's file.
            categories: the names of the classes, in their order.
        """
        ends = image.resolve().parts
        entries = [
            entry
            for entry in self._images.get(image.name, ())
            if ends[-len(entry["parts"]) :] == entry["parts"]
        ]
        if len(entries) != 1:
            number = "no image" if not entries else f"{len(entries)} images"
            return empty_instances(), [f"{self._path.name} has {number} named {image.name}"]
        (entry,) = entries
        if (entry.get("height"), entry.get("width")) != (height, width):
            return empty_instances(), [
                f"{self._path.name} says {entry.get('width')} × {entry.get('height')} pixels, but "
                f"the file has {width} × {height}"
            ]
        masks, classes, boxes, crowd, faults = [], [], [], [], []
        for annotation in self._annotations.get(_key(entry["id"]), ()):
            try:
                category = annotation.get("category_id")
                name = self.categories.get(_key(category))
                if name not in categories:
                    shown = name if name is not None else category
                    raise ValueError(
                        f"category {shown!r} is not one of instances.categories, "
                        f"{', '.join(categories)}"
                    )
                mask = _mask(annotation.get("segmentation"), height, width)
                box = _box(annotation.get("bbox"), *mask, height, width)
            except ValueError as error:
                faults.append(f"annotation {annotation['id']}: {error}")
                continue
            masks.append(mask)
            classes.append(categories.index(name) + 1)
            boxes.append(box)
            crowd.append(bool(annotation.get("iscrowd", 0)))
        if not masks:
            return empty_instances(), faults
        return stack_instances(masks, classes, np.array(boxes), crowd), faults


def _key(identifier: Any) -> Any:
    return identifier if isinstance(identifier, int | str) else None


def _mask(segmentation: Any, height: int, width: int) -> tuple[np.ndarray, tuple[int, int]]:
    """Return the mask in its box, (rows, columns) bool, and the first row and column of the box.

    Raises:
        ValueError: it is not a mask of an image of this size, or empty.
    """
    pixels = pixels_of_runs(runs_of_segmentation(segmentation, height, width))
    if not len(pixels):
        raise ValueError("its mask is empty")
    columns, rows = np.divmod(pixels, height)
    top, left = int(rows.min()), int(columns.min())
    mask = np.zeros((int(rows.max()) - top + 1, int(columns.max()) - left + 1), bool)
    mask[rows - top, columns - left] = True
    return mask, (top, left)


def _box(
    bbox: Any, mask: np.ndarray, corner: tuple[int, int], height: int, width: int
) -> tuple[float, ...]:
    """Return the box of an annotation, clipped to the image; that of the mask if it has none."""
    if bbox is None:
        (top, left), (rows, columns) = corner, mask.shape
        return float(top), float(left), float(top + rows), float(left + columns)
    numbers = isinstance(bbox, list) and all(
        type(value) in (int, float) and math.isfinite(value) for value in bbox
    )
    if not numbers or len(bbox) != 4:
        raise ValueError(f"bbox is {bbox!r}; must be x, y, width and height")
    x, y, w, h = map(float, bbox)
    if w <= 0 or h <= 0:
        raise ValueError(f"bbox has the width {w:g} and the height {h:g}; must be above 0")
    check_inside("bbox", x, y, x + w, y + h, height, width)
    clipped = (max(y, 0.0), max(x, 0.0), min(y + h, float(height)), min(x + w, float(width)))
    if clipped[0] >= clipped[2] or clipped[1] >= clipped[3]:
        raise ValueError("bbox is outside the image")
    return clipped
