"""Pool the folds of a cross-validation: prove who was tested by which model, and evaluate all.

Each RUN is a folder of results with `split.folds` and one of the folds. The folder --out gets the
proof with the figures of each fold (folds.json) and the test results of all patients, which
`gigatile compare` reads like those of a run; and if all runs predicted the same new slides, the
mean of their predictions (predictions/slides.tsv).
"""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run of each fold")
    parser.add_argument("--out", type=Path, default=Path("folds"), help="folder to write (folds)")
    parser.add_argument(
        "--ensemble",
        type=Path,
        help="also copy the bundles of all runs to this new folder, with which `gigatile predict` "
        "predicts by the mean of the models",
    )


def run(args: argparse.Namespace) -> None:
    """Write the files, and print the figures."""
    # Imports scikit-learn and pandas, which takes a second.
    from rich.console import Console
    from rich.table import Table

    from gigatile.bundle.ensembles import bundles_of, write_ensemble
    from gigatile.evaluation.metrics_file import Interval
    from gigatile.report.pages import figure, interval
    from gigatile.report.pooled_folds import pool_folds

    def cell(metric: Interval) -> str:
        value = figure(metric.value)
        return value if metric.value is None else f"{value} ({interval(metric)})"

    pooled = pool_folds(args.runs)
    order = [fold.run for fold in pooled.proof.folds]
    runs = sorted(args.runs, key=lambda run: order.index(run.resolve().name))
    bundles = bundles_of(runs, pooled.proof.inputs) if args.ensemble else []
    written = pooled.write(args.out)
    # A third figure does not fit in a line.
    names = list(written.figures)[:2]
    table = Table("fold", "run", "patients", "slides", *names)
    for fold in pooled.proof.folds:
        counts = (str(fold.fold), fold.run, str(fold.patients), str(fold.slides))
        table.add_row(*counts, *(cell(fold.figures[name]) for name in names))
    name = "mean" if pooled.proof.scores == "mean" else "all"
    counts = (name, "", str(written.slides["patient"].nunique()), str(len(written.slides)))
    table.add_row(*counts, *(cell(written.figures[name]) for name in names))
    Console().print(table)
    for claim, counted in pooled.proof.claims.items():
        print(f"proved    {claim} ({counted})")
    for doubt in pooled.proof.doubts:
        print(f"doubt     {doubt}")
    if pooled.predictions is not None:
        count = len(pooled.predictions.slides)
        print(f"predicted {count} new slide(s); {pooled.predictions.agreement}")
    print(f"written   {args.out}")
    if args.ensemble:
        write_ensemble(bundles, args.out, args.ensemble.absolute())
        print(f"ensemble  {args.ensemble}")
