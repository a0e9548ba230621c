"""Evaluation of a classifier of whole slides on the test slides."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from gigatile.cohort.collect import usable_rows
from gigatile.files import write_json
from gigatile.json_models import write_model
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.section import parse_section
from gigatile.tasks.command_line import add_split
from gigatile.tasks.slide_classification.slide_scores import checksums_of_scores, read_scores
from gigatile.tasks.tile_classification.slide_predictions import write_predictions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/evaluate.py."""
    parser.add_argument("--maps", type=Path, required=True, help="folder of <slide>.json")
    add_split(parser)
    parser.add_argument("--new", action="store_true", help="new slides, which have no label")


def run(args: argparse.Namespace) -> None:
    """Collect the scores of a split or of new slides; of the test split, compute metrics."""
    settings = parse_section(EvaluationSettings, args.settings)

    from gigatile.evaluation.metrics import evaluate
    from gigatile.evaluation.slide_table import classes_of

    classes = classes_of(args.described)
    rows = usable_rows(args.table) if args.new else usable_rows(args.table, args.split)
    predictions = collect_scores(rows, args.maps, classes)
    slides = args.out / "slides.tsv"
    write_predictions(predictions.drop(columns="label") if args.new else predictions, slides)
    if args.split != "test":
        return
    hashes = checksums_of_scores(args, rows, slides)
    if args.new:
        write_json(args.out / "provenance.json", {"classes": classes, "inputs": hashes})
    else:
        write_model(args.out / "metrics.json", evaluate(predictions, classes, settings, hashes))


def collect_scores(
    rows: Sequence[Mapping[str, str]], maps: Path, classes: Sequence[str]
) -> pd.DataFrame:
    """Return a row for each scored slide: slide, patient, label, tiles, p_<class>…, call_mean.

    Args:
        rows: of the table of slides.
        maps: folder of <slide>.json.
        classes: of the model.

    Raises:
        UserError: see `read_scores`.
    """
    collected = []
    for row, scores in read_scores(rows, maps, classes):
        predicted = classes[max(range(len(scores)), key=lambda k: (scores[k], -k))]
        fields = [row.get(key, "") for key in ("slide", "patient", "label")]
        collected.append([*fields, int(row["tiles"]), *scores, predicted])
    names = [f"p_{name}" for name in classes]
    columns = ["slide", "patient", "label", "tiles", *names, "call_mean"]
    return pd.DataFrame(collected, columns=columns)
