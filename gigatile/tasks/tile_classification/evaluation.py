"""Evaluation of a tile classifier on the test slides, or on those of the validation split."""

import argparse
from pathlib import Path

from gigatile.cohort.collect import usable_rows
from gigatile.files import checksums
from gigatile.json_models import write_model
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.section import parse_section
from gigatile.software import import_tensorflow
from gigatile.tasks.command_line import add_split


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/evaluate.py."""
    parser.add_argument("--records", type=Path, required=True, help="folder of <slide>.tfrecord")
    parser.add_argument("--model", type=Path, required=True, help="the model (.keras)")
    add_split(parser)


def run(args: argparse.Namespace) -> None:
    """Score the tiles of a split, and predict the class of each slide; of test, compute metrics."""
    settings = parse_section(EvaluationSettings, args.settings)
    import_tensorflow()

    from gigatile.tasks.tile_classification.scoring import TileClassifier, score_slides
    from gigatile.tasks.tile_classification.slide_predictions import (
        predict_slides,
        write_predictions,
    )

    classifier = TileClassifier(args.model, args.described)
    tiles, slides = args.out / "tiles.parquet", args.out / "slides.tsv"
    score_slides(classifier, usable_rows(args.table, args.split), args.records, tiles, log=print)
    predictions = predict_slides(tiles, classifier.classes)
    write_predictions(predictions, slides)
    if args.split != "test":
        return

    from gigatile.evaluation.metrics import evaluate

    inputs = {"model/model.keras": args.model, "tiles.tsv": args.table}
    outputs = {"evaluation/tiles.parquet": tiles, "evaluation/slides.tsv": slides}
    metrics = evaluate(predictions, classifier.classes, settings, checksums(inputs | outputs))
    write_model(args.out / "metrics.json", metrics)
