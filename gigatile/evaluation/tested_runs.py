"""Reads the test results of runs that classify slides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pandas as pd

from gigatile.errors import UserError
from gigatile.evaluation.metrics_file import Interval, Metrics, SlideMetrics
from gigatile.evaluation.slide_table import read_slide_table
from gigatile.files import read_json, sha256_of
from gigatile.json_models import read_model
from gigatile.settings.evaluate import EvaluationSettings

SLIDES, METRICS = "evaluation/slides.tsv", "evaluation/metrics.json"

Figures = TypeVar("Figures", bound=Metrics)


@dataclass(frozen=True)
class TestedRun:
    """The test results of a run.

    Attributes:
        name: of its folder.
        slides: a row per test slide; see `read_slide_table`.
        metrics: of the run.
        settings: of its intervals.
        inputs: SHA-256 of its files, by name.
    """

    name: str
    classes: Sequence[str]
    slides: pd.DataFrame
    metrics: SlideMetrics
    settings: EvaluationSettings
    inputs: Mapping[str, str]

    @property
    def figures(self) -> dict[str, Interval]:
        """The main figures by name, by slide."""
        level = self.metrics.slide
        return {
            "accuracy": level.accuracy.mean_call,
            "ROC AUC": level.roc_auc.macro,
            "average precision": level.average_precision.macro,
        }


def read_tested(folders: Sequence[Path]) -> list[TestedRun]:
    """Read the test results of runs.

    Args:
        folders: of the runs, such as results/lung.

    Raises:
        UserError: two runs have the same name, a run was not evaluated or is not a classifier, or
            its files do not belong together.
    """
    check_names(folders)
    return [_read(folder) for folder in folders]


def check_names(folders: Sequence[Path]) -> None:
    """Refuse runs of the same name.

    Raises:
        UserError: names them.
    """
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        raise UserError(f"runs of the same name: {', '.join(names)}; their names must differ")


def predicts_outcomes(folder: Path) -> bool:
    """Return whether a run has figures of outcomes, and not of classes."""
    path = folder / METRICS
    return path.is_file() and "kind" in read_json(path)


def read_checked(folder: Path, kind: type[Figures]) -> tuple[Figures, dict[str, str]]:
    """Read metrics.json of a run, which must be of its slides.tsv.

    Args:
        folder: of the run.
        kind: of the metrics.

    Returns:
        The metrics, and the SHA-256 of both files by name.

    Raises:
        UserError: a file is missing or damaged, or they do not belong together.
    """
    if not (folder / METRICS).is_file():
        raise UserError(f"{folder}: has no {METRICS}; name the folder of an evaluated run")
    metrics = read_model(kind, folder / METRICS)
    sums = {path: sha256_of(folder / path) for path in (SLIDES, METRICS)}
    if metrics.inputs.get(SLIDES) != sums[SLIDES]:
        raise UserError(
            f"{folder / METRICS}: was computed from another version of {SLIDES}; run the workflow "
            "again"
        )
    name = folder.resolve().name
    return metrics, {f"{name}/{path}": sha256 for path, sha256 in sums.items()}


def _read(folder: Path) -> TestedRun:
    if predicts_outcomes(folder):
        raise UserError(
            f"{folder}: predicts numbers or survival; name a run that classifies slides"
        )
    metrics, sums = read_checked(folder, SlideMetrics)
    return TestedRun(
        folder.resolve().name,
        metrics.classes,
        read_slide_table(folder / SLIDES, metrics.classes),
        metrics,
        EvaluationSettings(**metrics.settings()),
        sums,
    )
