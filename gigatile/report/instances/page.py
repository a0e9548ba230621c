"""The page of an image: its metrics, and the outlines of annotated and predicted instances."""

import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gigatile.errors import UserError
from gigatile.evaluation.coco_input import CocoData, read_coco
from gigatile.evaluation.detection_metrics import DetectionMetrics
from gigatile.evaluation.instances import SCORE_THRESHOLD, label_pixels, overlapping_pairs
from gigatile.files import read_json
from gigatile.instances.predicted_images import read_regions
from gigatile.instances.resizing import resize_image
from gigatile.json_models import read_model
from gigatile.records.instances import AnnotatedImage, read_records_of
from gigatile.report.instances.inputs import ScoredImage, TrainedDetector, read_state_of
from gigatile.report.outlines import outline
from gigatile.report.pages import Neighbours, data_uri, render
from gigatile.report.provenance import checksum
from gigatile.report.unit_pages import PageInputs, WritePage

TEMPLATES = Path(__file__).parent / "templates"
# The files of an image, and what its page shows of them. Images share the files of their part.
FILES = {
    "{records}/{id}.json": "Image pages: input",
    "{records}/{id}.tfrecord": "Image pages: pictures",
}
# The longest side of a picture on a page, in pixels; outlines keep the resolution of the image.
PICTURE_SIDE = 1600
# Pictures of up to this many pixels are shown as they are.
LOSSLESS_PIXELS = 300_000
JPEG_QUALITY = 88
# Annotated and predicted instances, matched or not.
KINDS = ("matched", "missed", "predicted", "invented")

ImagePageInputs = PageInputs[ScoredImage, TrainedDetector]


@dataclass(frozen=True)
class Region:
    """A region of an image: usually all of it.

    Attributes:
        picture: data URI.
        height, width: in pixels of the image.
        paths: SVG paths in pixels, by kind; see `KINDS`. `crowds` are regions that are ignored.
        counts: number of instances of each kind.
    """

    picture: str
    height: int
    width: int
    paths: Mapping[str, str]
    counts: Mapping[str, int]


@dataclass(frozen=True)
class _Evaluated:
    """Truth and detections by the index of the region, and the indices of each image.

    A region of a new image has no index if nothing was detected in it. `threshold` is the lowest
    score of a prediction.
    """

    data: CocoData
    annotations: Sequence[Sequence[dict[str, Any]]]
    results: Sequence[Sequence[dict[str, Any]]]
    regions: Mapping[str, Sequence[int | None]]
    threshold: float


def image_pages(inputs: ImagePageInputs) -> WritePage:
    """Return the function that renders the page of an image."""
    new = inputs.files.results_name == "predictions"
    read = cache(partial(_read_new if new else _read_evaluated, inputs.files.results))
    return partial(_page, inputs, read)


def _read_evaluated(folder: Path) -> _Evaluated:
    truth = read_json(folder / "truth.json")
    data = read_coco(truth, read_json(folder / "detections.json"))
    regions: dict[str, list[int | None]] = {}
    order = sorted(truth["images"], key=lambda image: image["id"])
    for index, image in enumerate(order):
        regions.setdefault(image["file_name"], []).append(index)
    threshold = read_model(DetectionMetrics, folder / "metrics.json").separate.score_threshold
    return _Evaluated(data, *_by_region(data), regions, threshold)


def _read_new(folder: Path) -> _Evaluated:
    results = read_json(folder / "detections.json")
    numbers = read_regions(folder / "images.predicted.tsv")
    if not results:
        nothing = CocoData([], np.empty((0, 2), np.int64), [], [], [])
        return _Evaluated(nothing, [], [], {}, SCORE_THRESHOLD)
    sizes = {result["image_id"]: result["segmentation"]["size"] for result in results}
    categories = sorted({result["category_id"] for result in results})
    truth = {
        "images": [
            {"id": number, "height": height, "width": width}
            for number, (height, width) in sizes.items()
        ],
        "annotations": [],
        "categories": [{"id": number, "name": str(number)} for number in categories],
    }
    data = read_coco(truth, results)
    index = {number: position for position, number in enumerate(data.images)}
    regions = {name: list(map(index.get, of_image)) for name, of_image in numbers.items()}
    return _Evaluated(data, *_by_region(data), regions, SCORE_THRESHOLD)


def _by_region(data: CocoData) -> tuple[list[list[dict[str, Any]]], list[list[dict[str, Any]]]]:
    annotations: list[list[dict[str, Any]]] = [[] for _ in data.images]
    results: list[list[dict[str, Any]]] = [[] for _ in data.images]
    for lists, entries in ((annotations, data.annotations), (results, data.results)):
        for entry in entries:
            lists[entry["image_id"] - 1].append(entry)
    return annotations, results


def _page(
    inputs: ImagePageInputs, read: Any, image: str, neighbours: Neighbours
) -> tuple[str, dict[str, str]]:
    """Return the page of an image, and the checksums of its files by their names in the run."""
    row, scored = inputs.rows[image], inputs.scored[image]
    state = read_state_of(row, inputs.files.records)
    if state.state != "prepared":
        raise UserError(f"image {image}: was not prepared, but it was scored")
    files = inputs.files.expand(list(FILES), row.file)
    sums = {name: checksum(path) for name, path in files.items()}
    records = list(read_records_of(inputs.files.records, row.file, row.id))
    evaluated = read()
    indices = evaluated.regions.get(image, ())
    regions = []
    for position, record in enumerate(records):
        index = indices[position] if position < len(indices) else None
        regions.append(_region(record, evaluated, index))
    page = render(
        TEMPLATES / "image.html.j2",
        image=image,
        row=row,
        scored=scored,
        state=state,
        regions=regions,
        neighbours=neighbours,
        matches=inputs.matches(image),
        appearance=inputs.appearance(image),
        threshold=evaluated.threshold,
        sums=sums,
    )
    return page, sums


def _region(record: AnnotatedImage, evaluated: _Evaluated, index: int | None) -> Region:
    height, width = record.height, record.width
    truth = [] if index is None else evaluated.annotations[index]
    results = [] if index is None else evaluated.results[index]
    instances = [entry for entry in truth if not entry["iscrowd"]]
    predictions = [entry for entry in results if entry["score"] >= evaluated.threshold]
    size = height * width
    areas = [-float(entry["area"]) for entry in instances]
    first = label_pixels(instances, areas, size)
    second = label_pixels(predictions, [entry["score"] for entry in predictions], size)
    numbers, predicted_numbers, _, _, matches = overlapping_pairs(first, second)
    matched, matching = numbers[matches], predicted_numbers[matches]
    paths, counts = {}, {}
    for kind, labelled, numbers in (
        ("matched", first, matched),
        ("missed", first, np.setdiff1d(np.flatnonzero(first.areas[1:]) + 1, matched)),
        ("predicted", second, matching),
        ("invented", second, np.setdiff1d(np.flatnonzero(second.areas[1:]) + 1, matching)),
    ):
        pixels = labelled.labels.reshape(width, height).T
        paths[kind] = outlines_of(pixels, numbers)
        counts[kind] = len(numbers)
    crowds = [entry for entry in truth if entry["iscrowd"]]
    pixels = label_pixels(crowds, [0.0] * len(crowds), size).labels.reshape(width, height).T
    paths["crowds"], counts["crowds"] = outline(pixels > 0), len(crowds)
    return Region(_picture(record.pixels()), height, width, paths, counts)


def outlines_of(labels: np.ndarray, numbers: np.ndarray) -> str:
    """Return the outlines of some instances of a label image (rows, columns), as SVG paths.

    Each instance has its own path, also along the side that it shares with another one.
    """
    chosen = set(numbers.tolist())
    rows, columns = np.nonzero(labels)
    values = labels[rows, columns]
    order = np.argsort(values, kind="stable")
    rows, columns, values = rows[order], columns[order], values[order]
    bounds = [*np.flatnonzero(np.diff(values, prepend=-1)).tolist(), len(values)]
    paths = []
    for begin, end in itertools.pairwise(bounds):
        if int(values[begin]) not in chosen:
            continue
        own_rows, own_columns = rows[begin:end], columns[begin:end]
        top, left = own_rows.min(), own_columns.min()
        mask = np.zeros((own_rows.max() - top + 1, own_columns.max() - left + 1), bool)
        mask[own_rows - top, own_columns - left] = True
        paths.append(outline(mask, int(top), int(left)))
    return "".join(paths)


def _picture(pixels: np.ndarray) -> str:
    height, width = pixels.shape[:2]
    factor = min(1.0, PICTURE_SIDE / max(height, width))
    tall, wide = max(1, round(factor * height)), max(1, round(factor * width))
    buffer = io.BytesIO()
    image = Image.fromarray(resize_image(pixels, tall, wide))
    if tall * wide <= LOSSLESS_PIXELS:
        image.save(buffer, "PNG", optimize=True)
        return data_uri(buffer.getvalue(), "image/png")
    image.save(buffer, "JPEG", quality=JPEG_QUALITY)
    return data_uri(buffer.getvalue(), "image/jpeg")
