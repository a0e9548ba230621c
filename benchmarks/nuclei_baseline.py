#!/usr/bin/env python3
"""Figures of a segmentation of nuclei without training, next to those of a model.

The baseline is Otsu's threshold and a watershed by scikit-image: a Gaussian of 1 px, the threshold
(nuclei are the smaller part of the image), holes filled, an opening, and the watershed of the
smoothed distance transform from its maxima at least 5 px apart. The score of a nucleus is its depth
in pixels. By default, `peak_local_max` finds no maxima within 5 px of the border of the image; the
second baseline finds these, too.

Both, and the model of a run, are evaluated as runs are, on the same test images. Without options,
the images of the demo cohort are evaluated.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage
from skimage.color import rgb2gray
from skimage.feature import peak_local_max
from skimage.filters import gaussian, threshold_otsu
from skimage.morphology import disk, opening
from skimage.segmentation import watershed

from gigatile.cohort.images import read_images
from gigatile.demo.fields import draw_field
from gigatile.demo.images import COHORT
from gigatile.errors import UserError, run_command
from gigatile.evaluation.detection_metrics import DetectionMetrics, evaluate_detections
from gigatile.evaluation.metrics_file import Interval
from gigatile.files import read_json
from gigatile.instances.coco_file import CocoFile
from gigatile.instances.detection import Detection
from gigatile.instances.image_files import read_image
from gigatile.instances.label_images import instances_of_labels
from gigatile.json_models import read_model
from gigatile.records.instances import decode_image, read_records_of
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.tables import read_table
from gigatile.tasks.instance_segmentation.coco_results import CocoTruth, coco_results

# For COCO's figures: more than any image of nuclei has.
MAX_DETECTIONS = 1000
SIGMA, MIN_DISTANCE = 1, 5
Results = list[dict[str, Any]]


@dataclass
class Images:
    """Images to evaluate.

    Attributes:
        truth: in COCO's format, with one category.
        pixels: yields the id of each image and its pixels (height, width, 3) uint8.
        patients: of each image, by its id.
        groups: of each image, by its id; empty: no groups.
        settings: of the evaluation.
        model: detections of the model, in COCO's result format; None: there is no model.
    """

    truth: dict[str, Any]
    pixels: Iterator[tuple[int, np.ndarray]]
    patients: Mapping[int, str]
    groups: Mapping[int, str]
    settings: EvaluationSettings
    model: Results | None = None


def segment(pixels: np.ndarray, exclude_border: bool) -> list[Detection]:
    """Return the nuclei of an image (height, width, 3) uint8."""
    grey = gaussian(rgb2gray(pixels), SIGMA)
    if grey.min() == grey.max():
        return []
    inside = grey > threshold_otsu(grey)
    if inside.mean() > 0.5:
        inside = ~inside
    inside = opening(ndimage.binary_fill_holes(inside), disk(1))
    depth = ndimage.distance_transform_edt(inside)
    smooth = gaussian(depth, SIGMA)
    peaks = peak_local_max(
        smooth, min_distance=MIN_DISTANCE, labels=inside.astype(int), exclude_border=exclude_border
    )
    markers = np.zeros(inside.shape, int)
    markers[tuple(peaks.T)] = np.arange(1, len(peaks) + 1)
    labels = watershed(-smooth, markers, mask=inside)
    nuclei = []
    for number, box in enumerate(ndimage.find_objects(labels), 1):
        if box is not None:
            mask = labels[box] == number
            score = float(depth[box][mask].max())
            nuclei.append(Detection(mask, box[0].start, box[1].start, 0, score))
    return nuclei


def images_of_run(run: Path, samples: Path | None, column: str | None) -> Images:
    """Return the test images of a run: those that its evaluation has scored.

    Args:
        run: folder of the run.
        samples: the sample sheet; needed for groups only.
        column: of the sheet, with the groups; None: no groups.
    """
    truth = read_json(run / "evaluation/truth.json")
    rows = {row["image"]: row for row in read_table(run / "images.tsv")}
    names = {entry["id"]: entry["file_name"] for entry in truth["images"]}
    groups: dict[int, str] = {}
    if column is not None:
        if samples is None:
            raise UserError("--group-by: --samples must name the sheet with this column")
        sheet = read_images(samples, may_be_missing=lambda path: True, look=False)
        cells = {image.id: image.cells for image in sheet}
        if any(column not in cells.get(name, {}) for name in names.values()):
            raise UserError(f"{samples}: has no column {column!r}, or not all test images")
        groups = {number: cells[name][column] for number, name in names.items()}

    def pixels() -> Iterator[tuple[int, np.ndarray]]:
        # The records of the regions of a slide are in the order of the truth.
        for name in dict.fromkeys(names.values()):
            numbers = [number for number in names if names[number] == name]
            records = read_records_of(run / "images", rows[name]["part"], name)
            for number, record in zip(numbers, records, strict=True):
                yield number, record.pixels()

    metrics = read_model(DetectionMetrics, run / "evaluation/metrics.json")
    return Images(
        truth,
        pixels(),
        {number: rows[name]["patient"] for number, name in names.items()},
        groups,
        EvaluationSettings(**metrics.settings()),
        read_json(run / "evaluation/detections.json"),
    )


def annotated_images(annotations: Path, folder: Path, key: str | None) -> Images:
    """Return all images of a file in COCO's format; each is a patient.

    Args:
        annotations: the file.
        folder: of the images.
        key: of the images in the file, with the groups; None: no groups.
    """
    entries = {entry["file_name"]: entry for entry in read_json(annotations)["images"]}
    file = CocoFile(annotations)
    categories = list(file.categories.values())
    truth, decoded, groups = CocoTruth(categories), {}, {}
    for name, entry in entries.items():
        image = read_image(folder / name)
        size = image.height, image.width
        instances, faults = file.instances(folder / name, *size, categories)
        if faults:
            raise UserError(f"{annotations}: {name}: {faults[0]}")
        number = truth.add(name, *size, instances)
        decoded[number] = decode_image(image.data)
        if key is not None:
            if key not in entry:
                raise UserError(f"{annotations}: {name} has no {key!r}")
            groups[number] = str(entry[key])
    patients = {number: str(number) for number in decoded}
    return Images(truth.to_json(), iter(decoded.items()), patients, groups, EvaluationSettings())


def drawn_images(limit: int) -> Images:
    """Return the first images of the demo cohort."""
    truth, decoded, patients = CocoTruth(["nucleus"]), {}, {}
    for field in COHORT[:limit]:
        pixels, labels = draw_field(field)
        number = truth.add(field.image, *labels.shape, instances_of_labels(labels))
        decoded[number], patients[number] = pixels, field.patient
    return Images(truth.to_json(), iter(decoded.items()), patients, {}, EvaluationSettings())


def evaluate(
    images: Images, results: Mapping[str, Results], chosen: set[int]
) -> dict[str, DetectionMetrics]:
    """Return the metrics of several detectors on some of the images."""
    truth = images.truth | {
        "images": [entry for entry in images.truth["images"] if entry["id"] in chosen],
        "annotations": [e for e in images.truth["annotations"] if e["image_id"] in chosen],
    }
    return {
        name: evaluate_detections(
            truth,
            [result for result in some if result["image_id"] in chosen],
            images.patients,
            images.settings,
            MAX_DETECTIONS,
            images.settings.score_threshold,
        )
        for name, some in results.items()
    }


def print_figures(title: str, by_detector: Mapping[str, DetectionMetrics]) -> None:
    first = next(iter(by_detector.values()))
    print(f"\n{title}: {first.n} images, {first.instances:,} nuclei")
    values = {}
    for name, metrics in by_detector.items():
        figures = (metrics.mask.ap50, metrics.mask.ap, metrics.separate.pq.macro)
        print(f"  {name:34}" + "".join(f"{_text(figure):>24}" for figure in figures))
        values[name] = metrics.mask.ap50.value
    if "model" in values and all(value is not None for value in values.values()):
        for name in list(values)[1:]:
            print(f"  model / {name}, AP50: {values['model'] / max(values[name], 1e-9):.2f}")


def _text(figure: Interval) -> str:
    if figure.value is None:
        return "not defined"
    if figure.low is None:
        return f"{figure.value:.3f}"
    return f"{figure.value:.3f} ({figure.low:.3f}–{figure.high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--run-dir", type=Path, help="a run: its test images, and its model")
    given.add_argument("--annotations", type=Path, help="all images of a file in COCO's format")
    parser.add_argument("--images", type=Path, help="their folder (images/ next to the file)")
    parser.add_argument("--samples", type=Path, help="with --run-dir: the sheet with the groups")
    parser.add_argument("--group-by", help="column of the sheet, or key of the images in the file")
    parser.add_argument("--limit", type=int, default=len(COHORT), help="images of the demo cohort")
    args = parser.parse_args()
    if args.run_dir:
        images = images_of_run(args.run_dir, args.samples, args.group_by)
    elif args.annotations:
        folder = args.images or args.annotations.parent / "images"
        images = annotated_images(args.annotations, folder, args.group_by)
    else:
        images = drawn_images(args.limit)
    if len(images.truth["categories"]) != 1:
        raise UserError("the baseline does not know categories: there must be exactly one")
    variants = {"baseline": True, "baseline, maxima at the border": False}
    results: dict[str, Results] = {} if images.model is None else {"model": images.model}
    results |= {name: [] for name in variants}
    for number, pixels in images.pixels:
        for name, exclude_border in variants.items():
            nuclei = segment(pixels, exclude_border)
            results[name] += coco_results(number, *pixels.shape[:2], nuclei)
    print(f"masks, up to {MAX_DETECTIONS:,} per image; 95 % intervals over patients")
    print(" " * 36 + "".join(f"{name:>24}" for name in ("AP50", "AP", "PQ")))
    for group in sorted(set(images.groups.values())):
        chosen = {number for number, name in images.groups.items() if name == group}
        print_figures(group, evaluate(images, results, chosen))
    print_figures("all", evaluate(images, results, set(images.patients)))


if __name__ == "__main__":
    run_command(main)
