"""Annotated regions of slides and images: QuPath's GeoJSON, and the pixels of each region.

In a region, all instances are outlined; what is not outlined there is background. Outside the
regions nothing is known.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gigatile.errors import UserError
from gigatile.instances.annotations import Instances, empty_instances, stack_instances
from gigatile.instances.geojson import OutlinedObject, rasterise, read_geojson
from gigatile.instances.image_files import MAX_PIXELS, ImageError
from gigatile.instances.resizing import PADDING
from gigatile.instances.slide_input import SlideInput
from gigatile.settings.instances import InstanceSettings
from gigatile.slides.reader import Slide

GEOJSON_SUFFIXES = (".geojson", ".geojson.gz")
# An instance of which a smaller share lies in the region is left out.
MIN_SHARE = 0.1
# Faults that a message lists.
_MAX_FAULTS = 10


@dataclass(frozen=True)
class AnnotatedObjects:
    """The objects of a GeoJSON file, in pixels of level 0.

    Attributes:
        regions: outlines of the regions.
        outlines: of the instances.
        classes: of each instance, from 1.
    """

    regions: list[list[list[np.ndarray]]]
    outlines: list[list[list[np.ndarray]]]
    classes: list[int]


def is_geojson(path: Path) -> bool:
    """Return whether a file has the name of a GeoJSON file."""
    return path.name.lower().endswith(GEOJSON_SUFFIXES)


def read_objects(path: Path, settings: InstanceSettings) -> AnnotatedObjects:
    """Return the regions and instances of a GeoJSON file.

    Annotations of the class `settings.region_class`, or without a class, are regions. Detections
    and cells without a class are of the category, if there is only one.

    Raises:
        ImageError: lists what is wrong with the file.
    """
    try:
        objects = read_geojson(path)
    except UserError as error:
        raise ImageError(str(error).replace(f"{path.parent}/", "")) from None
    regions, outlines, classes, faults = [], [], [], []
    for number, item in enumerate(objects, 1):
        if item.kind == "annotation" and item.name in (None, settings.region_class):
            regions.append(item.polygons)
            continue
        name = item.name
        if name is None and len(settings.categories) == 1:
            name = settings.categories[0]
        if name not in settings.categories:
            shown = "has no class" if name is None else f"has the class {name!r}"
            faults.append(f"object {number} {shown}")
            continue
        outlines.append(_outline(item, settings))
        classes.append(settings.categories.index(name) + 1)
    if faults:
        more = f" and {len(faults) - _MAX_FAULTS} more" if len(faults) > _MAX_FAULTS else ""
        raise ImageError(
            f"{path.name}: {', '.join(faults[:_MAX_FAULTS])}{more}; must be one of "
            f"instances.categories, {', '.join(settings.categories)}"
        )
    return AnnotatedObjects(regions, outlines, classes)


def _outline(item: OutlinedObject, settings: InstanceSettings) -> list[list[np.ndarray]]:
    if item.nucleus and settings.cells == "nucleus":
        return item.nucleus
    return item.polygons


@dataclass(frozen=True)
class RegionImage:
    """The pixels of a region, and its instances.

    Attributes:
        pixels: (height, width, 3) uint8; padding outside the outline of the region.
        box: left, top, right, bottom in pixels of level 0.
        instances: in pixels of the region.
    """

    pixels: np.ndarray
    box: tuple[float, float, float, float]
    instances: Instances


def image_regions(
    pixels: np.ndarray, objects: AnnotatedObjects, name: str
) -> Iterator[RegionImage]:
    """Yield the regions of an image; the whole image if the file has none.

    Args:
        pixels: (height, width, 3) uint8 of the image.
        objects: of its GeoJSON file.
        name: of this file, for messages.

    Raises:
        ImageError: an instance or a region is outside the image.
    """
    height, width = pixels.shape[:2]
    _check_inside(objects, width, height, name)
    if not objects.regions:
        instances = _instances_in(objects, (0.0, 0.0), (1.0, 1.0), np.ones((height, width), bool))
        yield RegionImage(pixels, (0, 0, width, height), instances)
    for region in objects.regions:
        inside, (top, left) = rasterise(region, height, width)
        rows, columns = inside.shape
        if not inside.size:
            raise ImageError(f"{name}: a region has no pixel")
        part = pixels[top : top + rows, left : left + columns].copy()
        part[~inside] = PADDING
        instances = _instances_in(objects, (left, top), (1.0, 1.0), inside)
        yield RegionImage(part, (left, top, left + columns, top + rows), instances)


def slide_regions(
    slide: Slide, source: SlideInput, objects: AnnotatedObjects, name: str, region_class: str
) -> Iterator[RegionImage]:
    """Yield the regions of a slide.

    Args:
        slide: the open slide.
        source: how it is read.
        objects: of its GeoJSON file.
        name: of the GeoJSON file, for messages.
        region_class: name of the class of regions, for messages.

    Raises:
        ImageError: there is no region, or an object is outside the slide.
        SlideError: the slide cannot be read.
    """
    _check_inside(objects, slide.width, slide.height, name)
    if not objects.regions:
        raise ImageError(
            f"{name} has no region. In QuPath, draw annotations of the class {region_class} (or "
            "without a class) around the areas in which all instances are outlined"
        )
    step = (source.across, source.down)
    for region in objects.regions:
        points = np.concatenate([ring for polygon in region for ring in polygon]) / step
        limit = (source.width, source.height)
        high = np.clip(np.ceil(points.max(axis=0)), 1, limit).astype(np.int64)
        low = np.clip(np.floor(points.min(axis=0)), 0, high - 1).astype(np.int64)
        wide, tall = (high - low).tolist()
        boxes, spans = source.boxes(np.array([[*low[::-1], *high[::-1]]]))
        left, top, columns, rows = boxes[0].tolist()
        if max(wide * tall, rows * columns) > MAX_PIXELS:
            raise ImageError(
                f"{name}: a region of {wide} × {tall} pixels; a region has at most {MAX_PIXELS:,}"
            )
        read = np.asarray(slide.region(left, top, source.level, columns, rows))
        pixels = source.resize(read, spans[0], tall, wide).copy()
        corner = low * step
        inside = _mask(region, corner, step, tall, wide)
        pixels[~inside] = PADDING
        instances = _instances_in(objects, (corner[0], corner[1]), step, inside)
        end = high * step
        yield RegionImage(pixels, (corner[0], corner[1], end[0], end[1]), instances)


def _mask(
    polygons: Sequence[Sequence[np.ndarray]],
    corner: Sequence[float] | np.ndarray,
    step: Sequence[float],
    height: int,
    width: int,
) -> np.ndarray:
    """Return which pixels of a region are in polygons of level 0: (height, width) bool."""
    mask = np.zeros((height, width), bool)
    crop, (top, left) = rasterise(_moved(polygons, corner, step), height, width)
    mask[top : top + crop.shape[0], left : left + crop.shape[1]] = crop
    return mask


def _moved(
    polygons: Sequence[Sequence[np.ndarray]],
    corner: Sequence[float] | np.ndarray,
    step: Sequence[float],
) -> list[list[np.ndarray]]:
    return [[(ring - np.asarray(corner)) / step for ring in polygon] for polygon in polygons]


def _instances_in(
    objects: AnnotatedObjects,
    corner: Sequence[float],
    step: Sequence[float],
    inside: np.ndarray,
) -> Instances:
    """Return the instances of which a part lies in a region.

    Args:
        objects: in pixels of level 0.
        corner: x and y of the corner of the region in level 0.
        step: pixels of level 0 per pixel of the region, across and down.
        inside: (height, width) bool, the pixels of the region.
    """
    height, width = inside.shape
    masks, classes = [], []
    for outline, number in zip(objects.outlines, objects.classes, strict=True):
        moved = _moved(outline, corner, step)
        points = np.concatenate([ring for polygon in moved for ring in polygon])
        if (points.max(axis=0) < 0).any() or (points.min(axis=0) > (width, height)).any():
            continue
        crop, (top, left) = rasterise(moved, height, width)
        crop = crop & inside[top : top + crop.shape[0], left : left + crop.shape[1]]
        area = abs(sum(_area(ring) for polygon in moved for ring in polygon[:1]))
        if crop.sum() >= max(1.0, MIN_SHARE * area):
            masks.append((crop, (top, left)))
            classes.append(number)
    return stack_instances(masks, classes) if masks else empty_instances()


def _area(ring: np.ndarray) -> float:
    x, y = ring.T
    return float(abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2)


def _check_inside(objects: AnnotatedObjects, width: int, height: int, name: str) -> None:
    """Raise ImageError if an object is outside the image: the file may be of another one."""
    outside = 0
    for outline in (*objects.regions, *objects.outlines):
        points = np.concatenate([ring for polygon in outline for ring in polygon])
        if (points.min(axis=0) < -1).any() or (points.max(axis=0) > (width + 1, height + 1)).any():
            outside += 1
    if outside:
        raise ImageError(
            f"{name}: {outside} object(s) leave the image of {width} × {height} pixels; the file "
            "may be of another image"
        )
