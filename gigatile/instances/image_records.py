"""The records of an image: its pixels and annotations, as the files have them."""

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import openslide

from gigatile.cohort.images import LABEL_SUFFIXES, SHARED_SUFFIX, Image
from gigatile.errors import UserError
from gigatile.instances.annotations import Instances
from gigatile.instances.coco_file import CocoFile
from gigatile.instances.image_files import ImageError, read_image
from gigatile.instances.label_images import instances_of_labels, read_label_image
from gigatile.instances.slide_input import plan_input
from gigatile.instances.slide_regions import (
    RegionImage,
    image_regions,
    is_geojson,
    read_objects,
    slide_regions,
)
from gigatile.instances.state import ImageFacts
from gigatile.records.instances import AnnotatedImage, decode_image, encode_png
from gigatile.settings.instances import InstanceSettings
from gigatile.settings.tiles import TileSettings
from gigatile.slides.opening import open_source
from gigatile.slides.scale import find_scale
from gigatile.slides.slide_files import SLIDE_SUFFIXES
from gigatile.stores.whole_copy import local_file

# Files with these suffixes are slides or other images.
TIFF_SUFFIXES = (".tif", ".tiff")
# Faults that the reason of an image lists.
MAX_FAULTS = 10


def read_records(
    image: Image,
    settings: InstanceSettings,
    facts: ImageFacts,
    report_progress: Callable[[None], None],
    scratch: Path | None = None,
) -> Iterator[AnnotatedImage]:
    """Yield the record of an image, or of each annotated region; complete `facts`.

    Args:
        image: a row of the sheet.
        settings: the section `instances`.
        facts: of the image.
        report_progress: called after each part of the work.
        scratch: a folder for a copy of an image in a store; None: the temporary one.

    Raises:
        ImageError, SlideError: the image or its annotations cannot be used.
        StoreError: the image is in a store, and cannot be read there.
        UserError: so for a whole slide.
    """
    is_slide = image.path.suffix.lower() in SLIDE_SUFFIXES - set(TIFF_SUFFIXES)
    outlined = image.annotations is not None and is_geojson(image.annotations)
    if is_slide and not outlined:
        raise ImageError(
            "a whole slide: only its regions with annotations in QuPath's .geojson can be used"
        )
    if is_slide:
        yield from _slide_records(image, image.path, settings, facts, report_progress, scratch)
        return
    with local_file(image.path, report_progress, scratch) as file:
        if outlined and is_whole_slide(file):
            yield from _slide_records(image, file, settings, facts, report_progress, scratch)
        else:
            yield from _image_records(image, file, settings, facts, report_progress)


def _image_records(
    image: Image,
    file: Path,
    settings: InstanceSettings,
    facts: ImageFacts,
    report_progress: Callable[[None], None],
) -> Iterator[AnnotatedImage]:
    annotations = image.annotations
    read = read_image(file)
    facts.height, facts.width = read.height, read.width
    report_progress(None)
    size = read.height, read.width
    if annotations is None or not is_geojson(annotations):
        instances = (
            None if annotations is None else _instances_of(image, annotations, *size, settings)
        )
        yield AnnotatedImage(read.data, image.id, *size, image.mpp, instances)
        return
    objects = read_objects(annotations, settings)
    pixels = decode_image(read.data)
    for region in image_regions(pixels, objects, annotations.name):
        yield _region_record(image, region, image.mpp)
        report_progress(None)


def _slide_records(
    image: Image,
    file: Path,
    settings: InstanceSettings,
    facts: ImageFacts,
    report_progress: Callable[[None], None],
    scratch: Path | None,
) -> Iterator[AnnotatedImage]:
    annotations = image.annotations
    assert annotations is not None
    objects = read_objects(annotations, settings)
    with open_source(file, scratch, lambda: report_progress(None)) as slide:
        facts.height, facts.width = slide.height, slide.width
        facts.mpp = find_scale(slide, image.mpp, TileSettings().objectives).mpp
        source = plan_input(slide, facts.mpp, settings.mpp, "instances.mpp")
        name = annotations.name
        for region in slide_regions(slide, source, objects, name, settings.region_class):
            yield _region_record(image, region, settings.mpp or facts.mpp)
            report_progress(None)


def _region_record(image: Image, region: RegionImage, mpp: float | None) -> AnnotatedImage:
    height, width = region.pixels.shape[:2]
    return AnnotatedImage(
        encode_png(region.pixels), image.id, height, width, mpp, region.instances, region.box
    )


def is_whole_slide(path: Path) -> bool:
    """Return whether OpenSlide opens a file, by its suffix and for TIFF by its content."""
    suffix = path.suffix.lower()
    if suffix in TIFF_SUFFIXES:
        return openslide.OpenSlide.detect_format(path) is not None
    return suffix in SLIDE_SUFFIXES


def _instances_of(
    image: Image, annotations: Path, height: int, width: int, settings: InstanceSettings
) -> Instances:
    """Return the annotated instances of an image.

    Args:
        image: a row of the sheet.
        annotations: the file: COCO's format, or a label image.
        height, width: of the image's file.
        settings: the section `instances`.

    Raises:
        ImageError: lists what is wrong with the annotations.
    """
    if annotations.suffix == SHARED_SUFFIX:
        try:
            file = coco_file(annotations)
        except UserError as error:
            raise ImageError(str(error)) from None
        instances, faults = file.instances(image.path, height, width, settings.categories)
        if faults:
            more = f"; {len(faults) - MAX_FAULTS} more" if len(faults) > MAX_FAULTS else ""
            raise ImageError("; ".join(faults[:MAX_FAULTS]) + more)
        return instances
    if annotations.suffix.lower() in LABEL_SUFFIXES:
        labels = read_label_image(annotations)
        if labels.shape != (height, width):
            raise ImageError(
                f"label image {annotations.name} has {labels.shape[1]} × {labels.shape[0]} pixels, "
                f"but the image has {width} × {height}"
            )
        return instances_of_labels(labels)
    raise ImageError(
        f"annotations {annotations.name}: must be COCO's .json, QuPath's .geojson or a label "
        f"image ({', '.join(LABEL_SUFFIXES)})"
    )


@cache
def coco_file(path: Path) -> CocoFile:
    """Read a file of annotations once for all of its images.

    Raises:
        UserError: see `CocoFile`.
    """
    print(f"reading {path}", file=sys.stderr)
    return CocoFile(path)
