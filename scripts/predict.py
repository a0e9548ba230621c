#!/usr/bin/env python3
"""Score new, unlabelled slides with a trained model and call each."""

import argparse
from pathlib import Path

from gigatile.cohort.collect import usable
from gigatile.errors import run_command
from gigatile.files import checksums, write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slides", type=Path, required=True, help="table of slides (tiles.tsv)")
    parser.add_argument("--records", type=Path, required=True, help="folder of <slide>.tfrecord")
    parser.add_argument("--model", type=Path, required=True, help="the model (.keras)")
    parser.add_argument("--described", type=Path, required=True, help="its settings.json")
    parser.add_argument("--out", type=Path, required=True, help="folder for the tables")
    args = parser.parse_args()

    from gigatile.evaluation.calls import call_slides, write_calls
    from gigatile.evaluation.scoring import Scorer, score_slides

    scorer = Scorer(args.model, args.described)
    tiles = args.out / "tiles.parquet"
    score_slides(scorer, usable(args.slides), args.records, tiles, tell=print)
    calls = call_slides(tiles, scorer.classes).drop(columns="label")
    write_calls(calls, args.out / "slides.tsv")
    inputs = {"model/model.keras": args.model, "predictions/tiles.tsv": args.slides}
    outputs = {f"predictions/{path.name}": path for path in (tiles, args.out / "slides.tsv")}
    described = {"classes": scorer.classes, "inputs": checksums(inputs | outputs)}
    write_json(args.out / "provenance.json", described)


if __name__ == "__main__":
    run_command(main)
