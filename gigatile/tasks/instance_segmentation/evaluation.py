"""Evaluation of Mask R-CNN on the test images: detections, truth, and metrics."""

import argparse
from pathlib import Path

from gigatile.cohort.collect import usable_rows
from gigatile.errors import UserError
from gigatile.evaluation.detection_metrics import evaluate_detections
from gigatile.evaluation.image_scores import COLUMNS, image_rows
from gigatile.files import checksums, combined_checksum, write_json
from gigatile.json_models import write_model
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.section import parse_section
from gigatile.tables import write_table
from gigatile.tasks.instance_segmentation import detecting
from gigatile.tasks.instance_segmentation.coco_results import CocoTruth, coco_results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/evaluate.py."""
    parser.add_argument("--model", type=Path, required=True, help="the model (.keras)")
    detecting.add_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Detect the instances of all usable test images, and compute metrics."""
    settings = parse_section(EvaluationSettings, args.settings)
    rows = usable_rows(args.table, "test")
    detector = detecting.open_detector(args)
    truth, results = CocoTruth(detector.instances.categories), []
    patients: dict[int, str] = {}
    for row, record, detections in detecting.detect_images(detector, rows, args.records):
        if record.instances is None:
            raise UserError(f"image {record.image_id}: has no annotations to evaluate with")
        size = record.height, record.width
        number = truth.add(record.image_id, *size, record.instances, record.region)
        patients[number] = row["patient"]
        results += coco_results(number, *size, detections)
        print(f"{record.image_id}: {len(detections)} detections")
    content = truth.to_json()
    files = {name: args.out / f"{name}.json" for name in ("truth", "detections")}
    write_json(files["truth"], content)
    write_json(files["detections"], results)
    table = args.out / "images.tsv"
    write_table(table, COLUMNS, image_rows(content, results, patients, settings.score_threshold))
    records = combined_checksum({f"images/{row['image']}": row["sha256"] for row in rows})
    inputs = {"model/settings.json": args.described, "images.tsv": args.table}
    inputs |= {f"evaluation/{path.name}": path for path in (*files.values(), table)}
    hashes = checksums(inputs) | {"images/<image> of the test images": records}
    metrics = evaluate_detections(
        content,
        results,
        patients,
        settings,
        detector.detection.detections_per_image,
        settings.score_threshold,
        hashes,
    )
    write_model(args.out / "metrics.json", metrics)
