"""Prediction of new slides by their tiles."""

import argparse
from pathlib import Path

from gigatile.cohort.collect import usable_rows
from gigatile.files import checksums, write_json
from gigatile.software import import_tensorflow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/predict.py."""
    parser.add_argument("--table", type=Path, required=True, help="table of slides (tiles.tsv)")
    parser.add_argument("--records", type=Path, required=True, help="folder of <slide>.tfrecord")
    parser.add_argument("--out", type=Path, required=True, help="folder for the tables")


def run(args: argparse.Namespace) -> None:
    """Score the tiles of new slides, and predict the class of each slide."""
    import_tensorflow()

    from gigatile.tasks.tile_classification.scoring import TileClassifier, score_slides
    from gigatile.tasks.tile_classification.slide_predictions import (
        predict_slides,
        write_predictions,
    )

    classifier = TileClassifier(args.model, args.described)
    tiles, slides = args.out / "tiles.parquet", args.out / "slides.tsv"
    score_slides(classifier, usable_rows(args.table), args.records, tiles, log=print)
    write_predictions(predict_slides(tiles, classifier.classes).drop(columns="label"), slides)
    inputs = {"model/model.keras": args.model, "predictions/tiles.tsv": args.table}
    outputs = {f"predictions/{path.name}": path for path in (tiles, slides)}
    provenance = {"classes": classifier.classes, "inputs": checksums(inputs | outputs)}
    write_json(args.out / "provenance.json", provenance)
