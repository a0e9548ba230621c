"""Pool the folds of a cross-validation: prove who was tested by which model, and evaluate all.

Each RUN is a folder of results with `split.folds` and one of the folds. The folder --out gets the
proof with the figures of each fold (folds.json) and the test results of all patients, which
`gigatile compare` reads like those of a run; and if all runs predicted the same new slides, the
mean of their scores (predictions/slides.tsv).
"""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run of each fold")
    parser.add_argument("--out", type=Path, default=Path("folds"), help="folder to write (folds)")


def run(args: argparse.Namespace) -> None:
    """Write the files, and print the figures."""
    # Imports scikit-learn and pandas, which takes a second.
    from rich.console import Console
    from rich.table import Table

    from gigatile.evaluation.metrics_file import Interval
    from gigatile.report.pages import figure, interval
    from gigatile.report.pooled_folds import pool_folds

    def cell(metric: Interval) -> str:
        value = figure(metric.value)
        return value if metric.value is None else f"{value} ({interval(metric)})"

    pooled = pool_folds(args.runs)
    level = pooled.write(args.out).slide
    table = Table("fold", "run", "patients", "slides", "accuracy by slide", "ROC AUC by slide")
    for fold in pooled.proof.folds:
        counts = (str(fold.fold), fold.run, str(fold.patients), str(fold.slides))
        table.add_row(*counts, cell(fold.accuracy), cell(fold.roc_auc))
    name = "mean" if pooled.proof.scores == "mean" else "all"
    counts = (name, "", str(level.patients), str(level.n))
    table.add_row(*counts, cell(level.accuracy.mean_call), cell(level.roc_auc.macro))
    Console().print(table)
    for claim, counted in pooled.proof.claims.items():
        print(f"proved    {claim} ({counted})")
    for doubt in pooled.proof.doubts:
        print(f"doubt     {doubt}")
    if pooled.predictions is not None:
        slides = pooled.predictions.slides
        unsure = int((slides["agreeing"] < len(args.runs)).sum())
        print(f"predicted {len(slides)} new slide(s); the models disagree on {unsure}")
    print(f"written   {args.out}")
