"""Make a sheet of images with annotated instances from a folder, without decoding the images."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gigatile.cohort.images import LABEL_SUFFIXES
from gigatile.command.slide_folder import unique_id
from gigatile.errors import UserError
from gigatile.instances.coco_file import CocoFile
from gigatile.instances.geojson import read_geojson
from gigatile.instances.slide_regions import is_geojson
from gigatile.settings.instances import InstanceSettings
from gigatile.slides.slide_files import SLIDE_SUFFIXES
from gigatile.tables import write_table

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp")
# Names of folders with label images, next to a folder with the images.
LABEL_FOLDERS = ("labels", "label_images", "masks", "annotations", "instances")
# A COCO file: its keys, which are near its beginning or after a list of images.
_COCO = re.compile(rb'"(images|annotations|categories|licenses)"\s*:')
_COCO_BYTES = 1 << 16
# Endings of the names of label images: `a_mask.png` belongs to `a.png`.
_ENDING = re.compile(r"[-_](labels?|masks?|instances?)$", re.IGNORECASE)


@dataclass(frozen=True)
class FolderImage:
    """A row of the sheet: the id, the file and the annotations of an image.

    `split` is `test` for COCO's validation images, which papers report on; else empty.
    """

    image: str
    path: Path
    annotations: Path
    split: str = ""


@dataclass(frozen=True)
class ImageFolder:
    """The content of a folder.

    Attributes:
        images: sorted by path.
        categories: of the instances.
        remarks: for the user: what was assumed and what to correct.
    """

    images: tuple[FolderImage, ...]
    categories: tuple[str, ...]
    remarks: tuple[str, ...]


def coco_files(files: Sequence[Path]) -> list[Path]:
    """Return the JSON files that look like COCO's; of COCO itself, those with instances."""
    matching = []
    for path in files:
        if path.suffix.lower() == ".json":
            with path.open("rb") as handle:
                if _COCO.search(handle.read(_COCO_BYTES)):
                    matching.append(path)
    return [path for path in matching if path.stem.startswith("instances_")] or matching


def read_coco_folder(folder: Path, files: Sequence[Path], jsons: Sequence[Path]) -> ImageFolder:
    """Return the images of COCO files that are in a folder.

    Args:
        folder: the folder.
        files: all files in it and its subfolders.
        jsons: the COCO files.

    Raises:
        UserError: a file is not in COCO's format, or the folder has no image of it.
    """
    by_name: dict[str, list[Path]] = {}
    for path in files:
        by_name.setdefault(path.name, []).append(path)
    images, missing, unclear, taken = [], 0, [], set[str]()
    categories: dict[str, None] = {}
    for json in jsons:
        content = CocoFile(json)
        categories |= dict.fromkeys(
            name
            for _, name in sorted(
                content.categories.items(), key=lambda item: (isinstance(item[0], str), item[0])
            )
        )
        for name in content.file_names:
            parts = Path(name.replace("\\", "/")).parts
            paths = [
                path
                for path in by_name.get(parts[-1] if parts else "", ())
                if path.parts[-len(parts) :] == parts
            ]
            if len(paths) == 1:
                name_of_image = unique_id(paths[0].stem, paths[0], taken)
                split = "test" if json.stem.startswith("instances_val") else ""
                images.append(FolderImage(name_of_image, paths[0], json, split))
            elif paths:
                unclear.append(name)
            else:
                missing += 1
    remarks = []
    if missing:
        remarks.append(f"{missing} image(s) of the annotations are not in {folder}; left out")
    if unclear:
        remarks.append(
            f"several files are named {unclear[0]}, as {len(unclear)} image(s); left out"
        )
    if not images:
        raise UserError(f"{folder}: has no image that {jsons[0]} lists")
    return ImageFolder(
        tuple(sorted(images, key=lambda image: image.path)),
        tuple(categories),
        (*remarks, _patients(len(images))),
    )


def read_label_folder(files: Sequence[Path]) -> ImageFolder | None:
    """Return the images that have a label image; None: there are none.

    A label image has the name of its image, or this name and `_label`, `_mask` or `_instances`. It
    is in the same folder, or in a folder `labels` or `masks` next to that of the image.
    """
    labels: dict[tuple[Path, str], Path] = {}
    for path in files:
        if path.suffix.lower() in LABEL_SUFFIXES:
            if path.parent.name.lower() in LABEL_FOLDERS:
                stem = _ENDING.sub("", path.stem)
                labels[path.parent.parent, stem] = path
            elif _ENDING.search(path.stem):
                labels[path.parent, _ENDING.sub("", path.stem)] = path
    images, taken, without = [], set[str](), 0
    label_files = set(labels.values())
    for path in files:
        if path.suffix.lower() not in IMAGE_SUFFIXES or path in label_files:
            continue
        if path.parent.name.lower() in LABEL_FOLDERS:
            continue
        annotations = labels.get((path.parent.parent, path.stem)) or labels.get(
            (path.parent, path.stem)
        )
        if annotations is None:
            without += 1
        else:
            images.append(FolderImage(unique_id(path.stem, path, taken), path, annotations))
    if not images:
        return None
    remarks = [f"{without} image(s) have no label image; left out"] if without else []
    remarks.append(
        "instances of label images are assumed to be of the category `object`; to name them, "
        "change instances.categories"
    )
    return ImageFolder(
        tuple(sorted(images, key=lambda image: image.path)),
        ("object",),
        (*remarks, _patients(len(images))),
    )


def read_geojson_folder(files: Sequence[Path]) -> ImageFolder | None:
    """Return the images and slides that have a GeoJSON file of QuPath; None: there are none.

    The GeoJSON file of `a.svs` is `a.geojson` or `a.svs.geojson`, perhaps with `.gz`, in any of the
    folders.

    Raises:
        UserError: a GeoJSON file is damaged; lists all of its faults.
    """
    outlined = {name_without_geojson(path): path for path in files if is_geojson(path)}
    images, taken, classes = [], set[str](), Counter[str | None]()
    regions = 0
    for path in files:
        annotations = outlined.get(path.name) or outlined.get(path.stem)
        if annotations is None or path.suffix.lower() not in (*IMAGE_SUFFIXES, *SLIDE_SUFFIXES):
            continue
        objects = read_geojson(annotations)
        region_class = InstanceSettings().region_class
        inside = [
            o for o in objects if o.kind != "annotation" or o.name not in (None, region_class)
        ]
        regions += len(objects) - len(inside)
        classes.update(item.name for item in inside)
        images.append(FolderImage(unique_id(path.stem, path, taken), path, annotations))
    if not images:
        return None
    names = tuple(sorted(name for name in classes if name is not None)) or ("object",)
    without = len(outlined) - len(images)
    remarks = [f"{without} GeoJSON file(s) have no image or slide; left out"] if without else []
    remarks.append(f"{regions} annotated region(s), {classes.total()} instances")
    if classes[None] and len(names) > 1:
        remarks.append(
            f"WARNING: {classes[None]} instances have no class, and there are {len(names)} "
            "classes; give them one in QuPath"
        )
    return ImageFolder(
        tuple(sorted(images, key=lambda image: image.path)),
        names,
        (*remarks, _patients(len(images))),
    )


def name_without_geojson(path: Path) -> str:
    """Return the name of a GeoJSON file without its suffixes."""
    name = path.name
    for suffix in (".gz", ".geojson"):
        if name.lower().endswith(suffix):
            name = name[: -len(suffix)]
    return name


def _patients(images: int) -> str:
    return (
        f"WARNING: each of the {images} images is assumed to be of another patient. If a patient "
        "has several images, correct the column `patient`: otherwise the patient may be in train "
        "and in test"
    )


def write_image_sheet(images: Sequence[FolderImage], out: Path) -> None:
    """Write a sheet of images; paths are relative to it."""
    start = out.parent.resolve()
    rows = [
        (
            image.image,
            image.image,
            os.path.relpath(image.path, start),
            os.path.relpath(image.annotations, start),
            image.split,
        )
        for image in images
    ]
    columns = ("image", "patient", "path", "annotations", "split")
    shown = len(columns) if any(image.split for image in images) else len(columns) - 1
    write_table(out, columns[:shown], [row[:shown] for row in rows])
