"""Make a sheet of slides from a folder, without opening the slides."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gigatile.paths import fault_of_path
from gigatile.settings.section import PLACEHOLDER
from gigatile.slides.slide_files import SLIDE_SUFFIXES
from gigatile.tables import write_table

# A barcode of The Cancer Genome Atlas; its first three parts are the patient:
# docs.gdc.cancer.gov/Encyclopedia/pages/TCGA_Barcode.
_BARCODE = re.compile(r"TCGA-[A-Z0-9]{2}-[A-Z0-9]{4}(?![A-Z0-9])", re.IGNORECASE)
# gdc-client downloads each file into a folder with such a name.
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_ID = 150


@dataclass(frozen=True)
class FolderSlide:
    """A row of the sheet: the id, the patient, the label and the file of a slide."""

    slide: str
    patient: str
    label: str
    path: Path


@dataclass(frozen=True)
class SlideFolder:
    """The content of a folder.

    Attributes:
        slides: sorted by path.
        others: files that are not slides, or cannot be used, sorted.
        remarks: for the user: what was assumed and what to correct.
    """

    slides: tuple[FolderSlide, ...]
    others: tuple[Path, ...]
    remarks: tuple[str, ...]


def is_slide(path: Path) -> bool:
    """Return whether the suffix of a file is one of a slide."""
    return path.suffix.lower() in SLIDE_SUFFIXES


def read_slide_folder(
    folder: Path, files: Sequence[Path], wanted: Callable[[Path], bool] = is_slide
) -> SlideFolder:
    """Return the slides among the files of a folder, with labels from the names of its subfolders.

    Args:
        folder: the folder.
        files: all files in it and its subfolders.
        wanted: returns whether a file is a slide, or has the embeddings of one.
    """
    folder = folder.resolve()
    paths, others, remarks = _slide_files(files, wanted)
    labels = _labels(folder, paths)
    slides = []
    taken: set[str] = set()
    for path in paths:
        name = path.parent.name if path.suffix.lower() == ".dcm" else path.stem
        slide = unique_id(name, path, taken)
        barcode = _BARCODE.match(name)
        patient = barcode[0].upper() if barcode else slide
        slides.append(FolderSlide(slide, patient, labels.get(path, PLACEHOLDER), path))
    remarks += _remarks(slides)
    return SlideFolder(tuple(slides), tuple(others), tuple(remarks))


def write_slide_sheet(slides: Iterable[FolderSlide], out: Path) -> None:
    """Write a sheet of slides; paths are relative to it."""
    # The real folder of the sheet, even if it is reached through a link.
    start = out.parent.resolve()
    rows = [(s.slide, s.patient, s.label, os.path.relpath(s.path, start)) for s in slides]
    write_table(out, ("slide", "patient", "label", "path"), rows)


def _slide_files(
    files: Sequence[Path], wanted: Callable[[Path], bool]
) -> tuple[list[Path], list[Path], list[str]]:
    """Return the file of each slide, the other files, and remarks on files that cannot be used."""
    mirax = {path.with_suffix("") for path in files if path.suffix.lower() == ".mrxs"}
    slides, others, remarks = [], [], []
    dicom: dict[Path, list[Path]] = defaultdict(list)
    for path in files:
        if mirax and not mirax.isdisjoint(path.parents):
            continue  # a part of a MIRAX slide
        fault = fault_of_path(path)
        if str(path) != " ".join(str(path).split()):
            fault = "contains a tab, a line end or several blanks in a row; rename it"
        if not wanted(path):
            others.append(path)
        elif fault:
            others.append(path)
            remarks.append(f"{path.name!r}: left out, since its path {fault}")
        elif path.suffix.lower() == ".dcm":
            dicom[path.parent].append(path)
        else:
            slides.append(path)
    # A DICOM slide has a file per level in one folder; OpenSlide opens it by any of them.
    slides += [max(levels, key=lambda path: path.stat().st_size) for levels in dicom.values()]
    return sorted(slides), others, remarks


def _labels(folder: Path, paths: Sequence[Path]) -> dict[Path, str]:
    """Return the label of each slide in a subfolder if the subfolders are classes, otherwise none.

    They are not if there is only one, if each slide has a subfolder, or if one is named by a UUID.
    """
    parts = {path: path.relative_to(folder).parts for path in paths if path.is_relative_to(folder)}
    labels = {path: names[0] for path, names in parts.items() if len(names) > 1}
    classes = set(labels.values())
    if len(classes) < 2 or len(classes) == len(labels) or any(map(_UUID.fullmatch, classes)):
        return {}
    return labels


def unique_id(name: str, path: Path, taken: set[str]) -> str:
    """Return an id that is safe as a file name and differs from those `taken`; add it to them."""
    safe = _UNSAFE.sub("_", name).lstrip("._-")[:_MAX_ID] or "slide"
    folder = _UNSAFE.sub("_", path.parent.name).lstrip("._-")
    candidate, number = safe, 1
    if safe.casefold() in taken and folder:
        candidate = safe = f"{folder}-{safe}"[: _MAX_ID - 8]
    while candidate.casefold() in taken:
        number += 1
        candidate = f"{safe[: _MAX_ID - 8]}-{number}"
    taken.add(candidate.casefold())
    return candidate


def _remarks(slides: Sequence[FolderSlide]) -> list[str]:
    counts = Counter(slide.label for slide in slides)
    unlabelled = counts.pop(PLACEHOLDER, 0)
    remarks = []
    if counts:
        listed = ", ".join(f"{label} ({count})" for label, count in sorted(counts.items()))
        remarks.append(f"labels are the names of the folders: {listed}")
    if unlabelled:
        remarks.append(
            f"the label of {unlabelled} slide(s) is unknown: replace {PLACEHOLDER} in the column "
            "`label`, or move the slides into a folder for each label"
        )
    assumed = sum(slide.patient == slide.slide for slide in slides)
    barcodes = len(slides) - assumed
    if barcodes:
        remarks.append(f"patients of {barcodes} slide(s) are from their TCGA barcodes")
    if assumed:
        remarks.append(
            f"WARNING: {assumed} file name(s) do not contain a patient, so each of these slides is "
            "assumed to be another patient. If a patient has several slides, correct the column "
            "`patient`: otherwise the patient may be in train and in test"
        )
    return remarks
