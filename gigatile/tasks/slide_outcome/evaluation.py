"""Evaluation of predicted outcomes on the test slides."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from gigatile.cohort.collect import usable_rows
from gigatile.errors import UserError, all_faults
from gigatile.files import checksums, combined_checksum, sha256_of
from gigatile.json_models import read_model, write_model
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.section import parse_section
from gigatile.tables import read_table, write_table
from gigatile.tasks.command_line import add_split
from gigatile.tasks.slide_classification.slide_scores import SlideScoreState

COLUMNS = ("slide", "patient", "label", "tiles", "predicted")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/evaluate.py."""
    parser.add_argument("--maps", type=Path, required=True, help="folder of <slide>.json")
    parser.add_argument("--validated", type=Path, help="slides.tsv of the validation split")
    add_split(parser)


def run(args: argparse.Namespace) -> None:
    """Collect the predictions of a split; of the test split, compute metrics."""
    settings = parse_section(EvaluationSettings, args.settings)
    rows = usable_rows(args.table, args.split)
    predictions = collect_predictions(rows, args.maps)
    slides = args.out / "slides.tsv"
    write_table(slides, COLUMNS, predictions.astype(object).to_numpy().tolist())
    if args.split != "test":
        return

    from gigatile.evaluation.outcomes import evaluate_outcomes

    hashes = checksums(
        {
            "model/settings.json": args.described,
            "tiles.tsv": args.table,
            "evaluation/slides.tsv": slides,
            "validation/slides.tsv": args.validated,
        }
    )
    names = [f"{row['slide']}.json" for row in rows]
    hashes["evaluation/maps/<slide>.json of the test slides"] = combined_checksum(
        {f"evaluation/maps/{name}": sha256_of(args.maps / name) for name in names}
    )
    valid = read_predictions(args.validated)
    metrics = evaluate_outcomes(predictions, valid, settings, hashes)
    write_model(args.out / "metrics.json", metrics)


def collect_predictions(rows: Sequence[Mapping[str, str]], maps: Path) -> pd.DataFrame:
    """Return a row for each slide with a prediction; see `COLUMNS`.

    Args:
        rows: of the table of slides.
        maps: folder of <slide>.json.

    Raises:
        UserError: a file is of another slide, or no slide has a prediction.
    """
    collected, reasons = [], []
    for row in rows:
        path = maps / f"{row['slide']}.json"
        state = read_model(SlideScoreState, path)
        if state.slide != row["slide"] or (
            state.state != "failed" and list(state.scores) != ["prediction"]
        ):
            raise UserError(
                f"{path}: has no prediction for slide {row['slide']!r}; delete it and run again"
            )
        if state.state == "failed":
            reasons.append(f"{state.slide}: {state.reason}")
            print(f"not scored: {reasons[-1]}")
            continue
        fields = [row[key] for key in ("slide", "patient", "label")]
        collected.append([*fields, int(row["tiles"]), state.scores["prediction"]])
    if reasons and not collected:
        raise all_faults(f"{maps}: no slide was scored", reasons)
    return pd.DataFrame(collected, columns=list(COLUMNS))


def read_predictions(path: Path) -> pd.DataFrame:
    """Read a table that `run` wrote.

    Raises:
        UserError: it is missing or damaged.
    """
    rows = read_table(path, COLUMNS)
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    try:
        return table.astype({"tiles": int, "predicted": float})
    except ValueError as error:
        raise UserError(f"{path}: {error}; delete it and run again") from None
