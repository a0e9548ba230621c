"""Compares the test results of several runs, for a paper."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pandas as pd

from gigatile.errors import UserError
from gigatile.evaluation.compared_outcomes import compare_outcomes
from gigatile.evaluation.comparison import PairedFigure, compare_models, holm
from gigatile.evaluation.tested_outcomes import TestedOutcomes, read_tested_outcomes
from gigatile.evaluation.tested_runs import TestedRun, predicts_outcomes, read_tested
from gigatile.json_models import Written

AnyRun = TestedRun | TestedOutcomes


class ComparedFigure(Written):
    """A figure of a run and of the first one, on the patients that both were tested on.

    Attributes:
        run: name of the run.
        figure: name of the figure.
        value, of_first: its values; `difference`: the first minus the second of these.
        low, high: 95 % interval of the difference; None: too few patients.
        test: of no difference.
        p: two-sided; None: not defined.
        corrected: p, corrected by Holm's method for the number of p-values of the comparison.
        patients: number of patients; of an area, in the class with the fewest.
    """

    run: str
    figure: str
    value: float
    of_first: float
    difference: float
    low: float | None
    high: float | None
    test: str
    p: float | None
    corrected: float | None
    patients: int


class RunsCompared(Written):
    """The content of comparison.json.

    Attributes:
        kind: what the runs predict.
        first: the run that the others are compared with.
        slides, patients: which both were tested on, by run.
        left_out: slides that only one of the two was tested on, by run.
        resamples, seed: of the intervals.
        inputs: SHA-256 of the files.
    """

    kind: Literal["classes", "number", "survival"]
    first: str
    slides: dict[str, int]
    patients: dict[str, int]
    left_out: dict[str, list[str]]
    figures: list[ComparedFigure]
    resamples: int
    seed: int
    inputs: dict[str, str]


def compare_runs(folders: Sequence[Path]) -> RunsCompared:
    """Compare the test results of runs with those of the first one.

    Args:
        folders: of the runs, such as results/lung.

    Raises:
        UserError: a run was not evaluated, its files do not belong together, or it has other
            classes, outcomes, patients or labels than the first one.
    """
    first, *others = _read(folders)
    rows: list[tuple[str, PairedFigure]] = []
    slides, patients, left_out = {}, {}, {}
    for other in others:
        common = _common(first, other)
        of_first, of_other = (
            run.slides[run.slides["slide"].isin(common)].reset_index(drop=True)
            for run in (first, other)
        )
        _check_rows(first, other, of_first, of_other)
        if isinstance(first, TestedRun):
            figures = compare_models(of_other, of_first, first.classes, first.settings)
        else:
            figures = compare_outcomes(of_other, of_first, first.settings)
        rows += [(other.name, figure) for figure in figures]
        slides[other.name], patients[other.name] = len(of_first), int(of_first["patient"].nunique())
        left_out[other.name] = sorted(set(first.slides["slide"]) ^ set(other.slides["slide"]))
    corrected = holm([figure.p for _, figure in rows])
    return RunsCompared(
        kind=_kind(first),
        first=first.name,
        slides=slides,
        patients=patients,
        left_out=left_out,
        figures=[_row(run, figure, p) for (run, figure), p in zip(rows, corrected, strict=True)],
        resamples=first.settings.resamples,
        seed=first.settings.seed,
        inputs={name: sha256 for run in (first, *others) for name, sha256 in run.inputs.items()},
    )


def _read(folders: Sequence[Path]) -> Sequence[AnyRun]:
    of_outcomes = [folder for folder in folders if predicts_outcomes(folder)]
    if not of_outcomes:
        return read_tested(folders)
    if others := [folder for folder in folders if folder not in of_outcomes]:
        raise UserError(
            f"{of_outcomes[0]} predicts outcomes, {others[0]} does not; only runs that predict the "
            "same can be compared"
        )
    return read_tested_outcomes(folders)


def _kind(run: AnyRun) -> Literal["classes", "number", "survival"]:
    if isinstance(run, TestedRun):
        return "classes"
    return "number" if run.kind == "number" else "survival"


def _common(first: AnyRun, other: AnyRun) -> set[str]:
    if _kind(first) != _kind(other):
        raise UserError(
            f"{other.name} predicts outcomes of the kind {_kind(other)}, {first.name} "
            f"{_kind(first)}; only runs that predict the same can be compared"
        )
    if (
        isinstance(first, TestedRun)
        and isinstance(other, TestedRun)
        and sorted(first.classes) != sorted(other.classes)
    ):
        raise UserError(
            f"{other.name} has the classes {', '.join(other.classes)}, {first.name} "
            f"{', '.join(first.classes)}; only runs with the same classes can be compared"
        )
    common = set(first.slides["slide"]) & set(other.slides["slide"])
    if not common:
        raise UserError(f"{first.name} and {other.name} were tested on no common slide")
    return common


def _check_rows(
    first: AnyRun, other: AnyRun, of_first: pd.DataFrame, of_other: pd.DataFrame
) -> None:
    known = of_other.set_index("slide")
    for column in ("patient", "label"):
        values = known.loc[of_first["slide"], column].to_numpy()
        different = of_first[column].to_numpy() != values
        if different.any():
            number = int(different.argmax())
            slide, value = of_first["slide"][number], of_first[column][number]
            raise UserError(
                f"slide {slide} has the {column} {value!r} in {first.name} and "
                f"{values[number]!r} in {other.name}; run both on the same sheet"
            )


def _row(run: str, figure: PairedFigure, corrected: float | None) -> ComparedFigure:
    return ComparedFigure(
        run=run,
        figure=figure.name,
        value=round(figure.first, 6),
        of_first=round(figure.second, 6),
        difference=round(figure.first - figure.second, 6),
        low=figure.difference.low,
        high=figure.difference.high,
        test=figure.test,
        p=figure.p,
        corrected=corrected,
        patients=figure.difference.patients,
    )
