"""Detection of the instances of new images."""

import argparse
from pathlib import Path

from gigatile.cohort.collect import usable_rows
from gigatile.files import write_json
from gigatile.tables import read_table, write_table
from gigatile.tasks.instance_segmentation import detecting
from gigatile.tasks.instance_segmentation.coco_results import coco_results

COLUMNS = ("image", "patient", "state", "reason", "height", "width", "detections")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/predict.py."""
    parser.add_argument("--table", type=Path, required=True, help="table of the new images")
    detecting.add_arguments(parser)
    parser.add_argument("--images", type=Path, required=True, help="table to write (.tsv)")
    parser.add_argument(
        "--detections",
        type=Path,
        required=True,
        help="detections to write, in COCO's result format",
    )


def run(args: argparse.Namespace) -> None:
    """Detect the instances of all new images that could be prepared."""
    detector = detecting.open_detector(args)
    results: list[dict[str, object]] = []
    written: list[dict[str, object]] = []
    for number, (row, record, detections) in enumerate(
        detecting.detect_images(detector, usable_rows(args.table), args.records), 1
    ):
        results += [
            {"file_name": row["image"], **result}
            for result in coco_results(number, record.height, record.width, detections)
        ]
        cells = {"height": record.height, "width": record.width, "detections": len(detections)}
        written.append({**row, **cells})
        print(f"{row['image']}: {len(detections)} instances")
    done = {row["image"]: row for row in written}
    rows = [done.get(row["image"], dict(row)) for row in read_table(args.table)]
    write_json(args.detections, results)
    write_table(args.images, COLUMNS, [[row.get(name, "") for name in COLUMNS] for row in rows])
