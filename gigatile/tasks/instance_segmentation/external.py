"""External validation of a segmentation of instances: new images with annotations."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from gigatile.cohort.collect import usable_rows
from gigatile.cohort.images import ANNOTATIONS, read_images
from gigatile.cohort.new_labels import check_new_references
from gigatile.errors import UserError
from gigatile.evaluation.detection_metrics import DetectionMetrics
from gigatile.evaluation.external_file import LeftOut
from gigatile.evaluation.external_images import Scenes, evaluate_external_images
from gigatile.evaluation.image_scores import COLUMNS, image_rows
from gigatile.evaluation.two_cohorts import reasons_in_cohort, reasons_of_failures
from gigatile.files import checksums, combined_checksum, read_json
from gigatile.instances.predicted_images import read_regions
from gigatile.json_models import read_model, write_model
from gigatile.records.instances import read_records_of
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.section import parse_section
from gigatile.tables import write_table
from gigatile.tasks.instance_segmentation.coco_results import CocoTruth


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/evaluate_external.py."""
    for name, text in (
        ("records", "folder of the records of the new images"),
        ("predicted", "predictions/images.predicted.tsv"),
        ("detections", "predictions/detections.json"),
        ("described", "the model's settings.json"),
    ):
        parser.add_argument(f"--{name}", type=Path, required=True, help=text)


def run(args: argparse.Namespace) -> None:
    """Compare the detections of the new images with their annotations.

    Raises:
        UserError: a file is missing or damaged, or they are not of the same images.
    """
    settings = parse_section(EvaluationSettings, args.settings)
    test = read_model(DetectionMetrics, args.metrics)
    members = read_images(args.samples, False, lambda path: True, look=False)
    check_new_references(members, args.samples, ANNOTATIONS, lambda path: True)
    of_sheet = {member.id: member for member in members}
    reasons = reasons_of_failures(of_sheet, args.table, args.samples, "image")
    known = reasons_in_cohort(of_sheet, args.matches, "image")
    reasons |= {name: reason for name, reason in known.items() if name not in reasons}
    rows = [
        {**row, "patient": of_sheet[row["image"]].patient}
        for row in usable_rows(args.table)
        if row["image"] not in reasons
    ]
    results = _results_of_images(args.detections, args.predicted)
    scenes = _read_scenes(rows, args.records, test.categories, results)
    table = args.out.parent / "images.tsv"
    patients = dict(zip(scenes.table["number"], scenes.table["patient"], strict=True))
    threshold = test.separate.score_threshold
    scores = image_rows(scenes.truth, scenes.results, patients, threshold) if rows else []
    write_table(table, COLUMNS, scores)
    hashes = checksums(
        {
            "predictions/external/images.tsv": table,
            "predictions/images.tsv": args.table,
            "predictions/images.predicted.tsv": args.predicted,
            "predictions/detections.json": args.detections,
            "predictions/in_cohort.tsv": args.matches,
            "the sheet of new images": args.samples,
            "model/settings.json": args.described,
            "metrics.json": args.metrics,
        }
    )
    of_records = {f"predictions/images/{row['image']}": row["sha256"] for row in rows}
    hashes["predictions/images/<image>"] = combined_checksum(of_records)
    metrics = evaluate_external_images(
        scenes,
        {name: member.site for name, member in of_sheet.items()},
        [LeftOut(id=name, reason=reasons[name]) for name in of_sheet if name in reasons],
        test,
        settings,
        compared=not args.not_compared,
        inputs=hashes,
    )
    write_model(args.out, metrics)


def _results_of_images(
    detections: Path, predicted: Path
) -> Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]:
    """Return the detections of each region of each new image.

    Raises:
        UserError: the two files are not of the same images.
    """
    by_number: dict[int, list[Mapping[str, Any]]] = {}
    for result in read_json(detections):
        by_number.setdefault(result["image_id"], []).append(result)
    of_images = {
        name: [by_number.pop(number, []) for number in numbers]
        for name, numbers in read_regions(predicted).items()
    }
    others = [
        result["file_name"]
        for name, regions in of_images.items()
        for region in regions
        for result in region
        if result["file_name"] != name
    ]
    if others or by_number:
        raise UserError(
            f"{detections}: its images are not those of {predicted.name}; one of the two is out of "
            "date, run the prediction again"
        )
    return of_images


def _read_scenes(
    rows: Sequence[Mapping[str, str]],
    records: Path,
    categories: Sequence[str],
    results: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]],
) -> Scenes:
    """Return truth and detections of some rows of predictions/images.tsv.

    Raises:
        UserError: a record is missing or has no annotations, or has not been predicted.
    """
    truth = CocoTruth(categories)
    numbered: list[Mapping[str, Any]] = []
    table: list[tuple[int, str, str]] = []
    for row in rows:
        name = row["image"]
        of_image = list(read_records_of(records, row["part"], name))
        if len(of_image) != len(results.get(name, ())):
            raise UserError(
                f"image {name}: {len(of_image)} regions, but detections of "
                f"{len(results.get(name, ()))}; run the prediction again"
            )
        for record, detected in zip(of_image, results[name], strict=True):
            if record.instances is None:
                raise UserError(f"image {name}: has no annotations to evaluate with")
            size = record.height, record.width
            number = truth.add(name, *size, record.instances, record.region)
            numbered += [{**result, "image_id": number} for result in detected]
            table.append((number, name, row["patient"]))
    frame = pd.DataFrame(table, columns=["number", "image", "patient"])
    return Scenes(truth.to_json(), numbered, frame)
