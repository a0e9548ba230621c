"""Evaluation of a classifier of whole slides on the test slides."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from gigatile.cohort.collect import usable_rows
from gigatile.errors import UserError, all_faults
from gigatile.files import checksums, combined_checksum, sha256_of, write_json
from gigatile.json_models import read_model, write_model
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.section import parse_section
from gigatile.tasks.command_line import add_split
from gigatile.tasks.slide_classification.slide_scores import SlideScoreState
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
    folder, unit = ("predictions", "new") if args.new else ("evaluation", "test")
    table = "predictions/tiles.tsv" if args.new else "tiles.tsv"
    hashes = checksums(
        {"model/settings.json": args.described, table: args.table, f"{folder}/slides.tsv": slides}
    )
    names = [f"{row['slide']}.json" for row in rows]
    hashes[f"{folder}/maps/<slide>.json of the {unit} slides"] = combined_checksum(
        {f"{folder}/maps/{name}": sha256_of(args.maps / name) for name in names}
    )
    if args.new:
        write_json(args.out / "provenance.json", {"classes": classes, "inputs": hashes})
    else:
        write_model(args.out / "metrics.json", evaluate(predictions, classes, settings, hashes))


def collect_scores(
    rows: Sequence[Mapping[str, str]], maps: Path, classes: Sequence[str]
) -> pd.DataFrame:
    """Return a row for each scored slide: slide, patient, label, tiles, p_<class>…, call_mean.

    A slide that was not scored is left out; its reason is in its file and in the log.

    Args:
        rows: of the table of slides.
        maps: folder of <slide>.json.
        classes: of the model.

    Raises:
        UserError: a file is of another slide or a model with other classes, or no slide was scored.
    """
    collected, reasons = [], []
    for row in rows:
        path = maps / f"{row['slide']}.json"
        state = read_model(SlideScoreState, path)
        if state.slide == row["slide"] and state.state == "failed":
            reasons.append(f"{state.slide}: {state.reason}")
            print(f"not scored: {reasons[-1]}")
            continue
        if state.slide != row["slide"] or list(state.scores) != list(classes):
            raise UserError(
                f"{path}: has no scores of slide {row['slide']!r} for {', '.join(classes)}; delete "
                "it and run again"
            )
        scores = list(state.scores.values())
        predicted = classes[max(range(len(scores)), key=lambda k: (scores[k], -k))]
        fields = [row.get(key, "") for key in ("slide", "patient", "label")]
        collected.append([*fields, int(row["tiles"]), *scores, predicted])
    if reasons and not collected:
        raise all_faults(f"{maps}: no slide was scored", reasons)
    names = [f"p_{name}" for name in classes]
    columns = ["slide", "patient", "label", "tiles", *names, "call_mean"]
    return pd.DataFrame(collected, columns=columns)
