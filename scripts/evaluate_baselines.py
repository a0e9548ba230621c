#!/usr/bin/env python3
"""Fit baselines to the mean embeddings of slides, and compare them with the model on test."""

import argparse
from pathlib import Path

from gigatile.cohort.collect import usable_rows
from gigatile.errors import run_command
from gigatile.files import checksums
from gigatile.json_models import write_model
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.section import parse_section

# Tiles of train that decide the axes of the plane, and tiles of test that are shown in it.
TILES = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, required=True, help="table of slides (tiles.tsv)")
    parser.add_argument("--states", type=Path, required=True, help="checksums of their states")
    parser.add_argument(
        "--embeddings", type=Path, required=True, help="folder of <slide>.h5 and .json"
    )
    parser.add_argument("--slides", type=Path, required=True, help="evaluation/slides.tsv")
    parser.add_argument("--described", type=Path, required=True, help="the model's settings.json")
    parser.add_argument(
        "--settings", default="{}", help="the section `evaluate` as JSON (default: its defaults)"
    )
    parser.add_argument("--out", type=Path, required=True, help="file to write (.json)")
    args = parser.parse_args()
    settings = parse_section(EvaluationSettings, args.settings)

    import pandas as pd

    from gigatile.embeddings.means import read_means
    from gigatile.embeddings.sampled_tiles import sample_tiles
    from gigatile.evaluation.baselines import evaluate_baselines
    from gigatile.evaluation.slide_table import classes_of, read_slide_table

    rows = usable_rows(args.table)
    counts = {
        split: {row["slide"]: int(row["tiles"]) for row in rows if row["split"] == split}
        for split in ("train", "test")
    }
    classes = classes_of(args.described)
    inputs = {
        "tiles.tsv": args.table,
        "states.tsv": args.states,
        "model/settings.json": args.described,
        "evaluation/slides.tsv": args.slides,
    }
    baselines = evaluate_baselines(
        pd.DataFrame(rows)[["slide", "patient", "label", "split"]],
        read_means(args.embeddings, [row["slide"] for row in rows]),
        [
            some
            for tiles in counts.values()
            for some in sample_tiles(args.embeddings, tiles, TILES, settings.seed)
        ],
        read_slide_table(args.slides, classes),
        classes,
        settings,
        checksums(inputs),
    )
    write_model(args.out, baselines)


if __name__ == "__main__":
    run_command(main)
