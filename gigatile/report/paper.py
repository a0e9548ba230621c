"""The comparison of runs for a paper: a table as TSV and in LaTeX, and a paragraph of methods."""

from pathlib import Path

import pandas as pd

from gigatile.evaluation.compared_runs import ComparedFigure, RunsCompared
from gigatile.files import write_text
from gigatile.json_models import write_model
from gigatile.tables import write_table

COLUMNS = (
    *("run", "figure", "value", "of_first", "difference", "low", "high", "test", "p", "corrected"),
    "patients",
)
_METHODS = (
    "The model {run} was compared with {first} on the {slides} slides of {patients} patients that "
    "both were tested on. {averaged}"
    "Differences are given with 95 % intervals from a paired Bayesian bootstrap over patients "
    "({resamples} draws, seed {seed}) with an unseen patient at either extreme. {tests} "
    "{corrected}\n"
)
_AVERAGED = {
    "classes": "The scores of a patient's slides with the same label were averaged. ",
    "survival": "The risks of a patient's slides were averaged. ",
    "number": "",
}
_TESTS = {
    "classes": (
        "Areas under the ROC curve were compared by DeLong's test with patients as clusters, "
        "accuracies by McNemar's exact test."
    ),
    "survival": (
        "Concordances (Harrell) were compared by a z-test with the variance of the jackknife over "
        "patients."
    ),
    "number": (
        "Concordances were compared by a z-test with the variance of the jackknife over patients, "
        "absolute errors by Wilcoxon's signed-rank test of the patients' means."
    ),
}


def write_comparison(compared: RunsCompared, folder: Path) -> None:
    """Write comparison.json, comparison.tsv, comparison.tex and methods.txt.

    Args:
        compared: the comparison.
        folder: is made if it is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = [[getattr(figure, name) for name in COLUMNS] for figure in compared.figures]
    write_table(folder / "comparison.tsv", COLUMNS, rows)
    write_text(folder / "comparison.tex", latex_of(compared))
    write_text(folder / "methods.txt", methods_of(compared))
    write_model(folder / "comparison.json", compared)


def latex_of(compared: RunsCompared) -> str:
    """Return the table in LaTeX; it needs the package booktabs."""
    titles = ("Run", "Figure", "Value", compared.first, "Difference (95 % interval)", "p")
    table = pd.DataFrame([_cells(figure) for figure in compared.figures], columns=titles)
    text: str = table.to_latex(index=False, escape=True, column_format="llrrrr")
    return text


def _cells(figure: ComparedFigure) -> tuple[str, ...]:
    return (
        figure.run,
        figure.figure,
        f"{figure.value:.3f}",
        f"{figure.of_first:.3f}",
        difference_of(figure),
        p_value(figure.corrected),
    )


def difference_of(figure: ComparedFigure) -> str:
    """Return a difference with its interval."""
    text = f"{figure.difference:+.3f}"
    return text if figure.low is None else f"{text} ({figure.low:+.3f} to {figure.high:+.3f})"


def p_value(p: float | None) -> str:
    """Return a p-value as text."""
    if p is None:
        return "not defined"
    return "below 0.001" if p < 0.001 else f"{p:.3f}"


def methods_of(compared: RunsCompared) -> str:
    """Return a paragraph on the methods for each run."""
    return "\n".join(
        _METHODS.format(
            run=run,
            first=compared.first,
            slides=compared.slides[run],
            patients=compared.patients[run],
            resamples=compared.resamples,
            seed=compared.seed,
            averaged=_AVERAGED[compared.kind],
            tests=_TESTS[compared.kind],
            corrected=_corrected(sum(figure.p is not None for figure in compared.figures)),
        )
        for run in compared.slides
    )


def _corrected(tests: int) -> str:
    """Return the sentence on the correction of p-values."""
    if tests == 0:
        return "No p-value is defined for so few patients."
    if tests == 1:
        return "The p-value is two-sided; it is the only one, so it was not corrected."
    return f"The {tests} two-sided p-values were corrected by Holm's method."
