"""Detection of the instances of new images."""

import argparse
from collections import Counter
from pathlib import Path

from gigatile.cohort.collect import usable_rows
from gigatile.files import write_json
from gigatile.instances.predicted_images import COLUMNS
from gigatile.tables import read_table, write_table
from gigatile.tasks.instance_segmentation import detecting
from gigatile.tasks.instance_segmentation.coco_results import coco_results


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
    sizes: dict[str, list[tuple[int, int]]] = {}
    detected: Counter[str] = Counter()
    for number, (row, record, detections) in enumerate(
        detecting.detect_images(detector, usable_rows(args.table), args.records), 1
    ):
        name, size = row["image"], (record.height, record.width)
        results += [
            {"file_name": name, **result} for result in coco_results(number, *size, detections)
        ]
        sizes.setdefault(name, []).append(size)
        detected[name] += len(detections)
        print(f"{name}: {len(detections)} instances")
    rows = []
    for row in read_table(args.table):
        cells: dict[str, object] = dict(row)
        if regions := sizes.get(row["image"]):
            height, width = regions[0] if len(regions) == 1 else ("", "")
            counts = {"regions": len(regions), "detections": detected[row["image"]]}
            cells |= {"height": height, "width": width, **counts}
        rows.append([cells.get(name, "") for name in COLUMNS])
    write_json(args.detections, results)
    write_table(args.images, COLUMNS, rows)
