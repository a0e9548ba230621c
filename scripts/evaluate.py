#!/usr/bin/env python3
"""Score every test tile once, call each test slide, and compute the figures."""

import argparse
from pathlib import Path

from gigatile.cohort.collect import usable
from gigatile.errors import run_command
from gigatile.files import checksums, write_json
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.section import parse_section


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slides", type=Path, required=True, help="table of slides (tiles.tsv)")
    parser.add_argument("--records", type=Path, required=True, help="folder of <slide>.tfrecord")
    parser.add_argument("--model", type=Path, required=True, help="the model (.keras)")
    parser.add_argument("--described", type=Path, required=True, help="its settings.json")
    parser.add_argument("--settings", required=True, help="the section `evaluate` as JSON")
    parser.add_argument("--out", type=Path, required=True, help="folder for tables and figures")
    args = parser.parse_args()
    settings = parse_section(EvaluationSettings, args.settings)

    from gigatile.evaluation.calls import call_slides, write_calls
    from gigatile.evaluation.metrics import evaluate
    from gigatile.evaluation.scoring import Scorer, score_slides

    scorer = Scorer(args.model, args.described)
    tiles, table = args.out / "tiles.parquet", args.out / "slides.tsv"
    rows = usable(args.slides, "test")
    score_slides(scorer, rows, args.records, tiles, tell=print)
    calls = call_slides(tiles, scorer.classes)
    write_calls(calls, table)
    inputs = {"model/model.keras": args.model, "tiles.tsv": args.slides}
    outputs = {"evaluation/tiles.parquet": tiles, "evaluation/slides.tsv": table}
    figures = evaluate(calls, scorer.classes, settings)
    write_json(args.out / "metrics.json", figures | {"inputs": checksums(inputs | outputs)})


if __name__ == "__main__":
    run_command(main)
