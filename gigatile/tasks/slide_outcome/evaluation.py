"""Evaluation of predicted outcomes on the test slides."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from gigatile.cohort.collect import usable_rows
from gigatile.evaluation.outcome_scale import DescribedOutcome
from gigatile.evaluation.outcome_table import COLUMNS, read_outcome_table
from gigatile.files import checksums, write_json
from gigatile.json_models import read_model, write_model
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.section import parse_section
from gigatile.tables import write_table
from gigatile.tasks.command_line import add_split
from gigatile.tasks.slide_classification.slide_scores import checksums_of_scores, read_scores


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/evaluate.py."""
    parser.add_argument("--maps", type=Path, required=True, help="folder of <slide>.json")
    parser.add_argument("--validated", type=Path, help="slides.tsv of the validation split")
    add_split(parser)
    parser.add_argument("--new", action="store_true", help="new slides, which have no outcome")


def run(args: argparse.Namespace) -> None:
    """Collect the predictions of a split or of new slides; of the test split, compute metrics."""
    settings = parse_section(EvaluationSettings, args.settings)
    rows = usable_rows(args.table) if args.new else usable_rows(args.table, args.split)
    predictions = collect_predictions(rows, args.maps)
    slides = args.out / "slides.tsv"
    columns = [name for name in COLUMNS if not (args.new and name == "label")]
    write_table(slides, columns, predictions[columns].astype(object).to_numpy().tolist())
    if args.split != "test":
        return
    hashes = checksums_of_scores(args, rows, slides)
    if args.new:
        write_json(args.out / "provenance.json", {"inputs": hashes})
        return

    from gigatile.evaluation.outcomes import evaluate_outcomes, median_risk

    hashes |= checksums({"validation/slides.tsv": args.validated})
    hazard = read_model(DescribedOutcome, args.described).outcome.hazard
    threshold = median_risk(read_outcome_table(args.validated))
    metrics = evaluate_outcomes(predictions, threshold, settings, hashes, hazard)
    write_model(args.out / "metrics.json", metrics)


def collect_predictions(rows: Sequence[Mapping[str, str]], maps: Path) -> pd.DataFrame:
    """Return a row for each slide with a prediction; see `COLUMNS`.

    Args:
        rows: of the table of slides.
        maps: folder of <slide>.json.

    Raises:
        UserError: see `read_scores`.
    """
    collected = []
    for row, (predicted,) in read_scores(rows, maps, ["prediction"]):
        fields = [row.get(key, "") for key in ("slide", "patient", "label")]
        collected.append([*fields, int(row["tiles"]), predicted])
    return pd.DataFrame(collected, columns=list(COLUMNS))
