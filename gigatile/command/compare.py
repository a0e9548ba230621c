"""Compare the test results of models with those of the first one, on the same patients.

Each RUN is a folder of results, such as results/lung. The folder --out gets a table as TSV and in
LaTeX, a paragraph on the methods, and comparison.json.
"""

import argparse
from pathlib import Path

from gigatile.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="two runs or more")
    parser.add_argument(
        "--out", type=Path, default=Path("comparison"), help="folder to write (comparison)"
    )


def run(args: argparse.Namespace) -> None:
    """Write the files, and print the table."""
    if len(args.runs) < 2:
        raise UserError("name at least two runs, such as results/first results/second")

    # Imports scikit-learn and pandas, which takes a second.
    from rich.console import Console
    from rich.table import Table

    from gigatile.evaluation.compared_runs import compare_runs
    from gigatile.report.paper import difference_of, p_value, write_comparison

    compared = compare_runs(args.runs)
    write_comparison(compared, args.out)
    table = Table("run", "figure", "value", compared.first, "difference (95 % interval)", "p")
    for figure in compared.figures:
        values = (f"{value:.3f}" for value in (figure.value, figure.of_first))
        table.add_row(
            figure.run, figure.figure, *values, difference_of(figure), p_value(figure.corrected)
        )
    Console().print(table)
    for name, missing in compared.left_out.items():
        if missing:
            print(f"{len(missing)} slide(s) that only one of {compared.first} and {name} tested")
    print(f"written   {args.out}")
