"""Evaluation of the regression."""

import argparse
from pathlib import Path

import numpy as np

from gigatile.cohort.collect import usable_rows
from gigatile.evaluation.intervals import describe_intervals, rounded
from gigatile.evaluation.metrics_file import Intervals, Metrics
from gigatile.files import checksums, read_json
from gigatile.json_models import write_model
from gigatile.records.example import decode_example
from gigatile.records.tfrecord import read_records
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.section import parse_section
from gigatile.tables import write_table


class ImageMetrics(Metrics):
    """evaluation/metrics.json."""

    intervals: Intervals
    error: float
    inputs: dict[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/evaluate.py."""
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)


def run(args: argparse.Namespace) -> None:
    """Predict the test images, and compute the mean absolute error."""
    from gigatile.models.saving import load_model

    settings = parse_section(EvaluationSettings, args.settings)
    described = read_json(args.described)
    model = load_model(args.model, described["sha256"], args.described)
    side, rows = described["images"]["side"], usable_rows(args.table, "test")
    pixels = []
    for row in rows:
        (record,) = read_records(args.records / f"{row['image']}.tfrecord")
        data = decode_example(record)["pixels"]
        pixels.append(np.frombuffer(data, np.uint8).reshape(side, side, 3))
    outputs = model.predict_on_batch({"pixels": np.stack(pixels)})[:, 0]
    table = args.out / "images.tsv"
    cells = [
        (row["image"], row["patient"], row["brightness"], f"{value:.6f}")
        for row, value in zip(rows, outputs, strict=True)
    ]
    write_table(table, ("image", "patient", "brightness", "predicted"), cells)
    errors = np.abs(outputs - np.array([float(row["brightness"]) for row in rows]))
    files = {
        "model/model.keras": args.model,
        "images.tsv": args.table,
        "evaluation/images.tsv": table,
    }
    metrics = ImageMetrics(
        intervals=describe_intervals(settings),
        error=rounded(errors.mean()),
        inputs=checksums(files),
    )
    write_model(args.out / "metrics.json", metrics)
