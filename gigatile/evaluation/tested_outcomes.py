"""Reads the test results of runs that predict numbers or risks of slides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd

from gigatile.evaluation.metrics_file import Interval
from gigatile.evaluation.outcome_table import read_outcome_table
from gigatile.evaluation.outcomes import OutcomeMetrics
from gigatile.evaluation.tested_runs import SLIDES, check_names, read_checked
from gigatile.settings.evaluate import EvaluationSettings


@dataclass(frozen=True)
class TestedOutcomes:
    """The test results of a run.

    Attributes:
        name: of its folder.
        slides: a row per test slide; see `read_outcome_table`.
        metrics: of the run.
        settings: of its intervals.
        inputs: SHA-256 of its files, by name.
    """

    name: str
    slides: pd.DataFrame
    metrics: OutcomeMetrics
    settings: EvaluationSettings
    inputs: Mapping[str, str]

    @property
    def kind(self) -> Literal["number", "survival"]:
        """Of the outcomes."""
        return self.metrics.kind

    @property
    def figures(self) -> dict[str, Interval]:
        """The main figures by name."""
        figures = {"concordance": self.metrics.concordance}
        if self.metrics.numbers:
            figures["mean absolute error"] = self.metrics.numbers.mean_absolute_error
            figures["R²"] = self.metrics.numbers.r_squared
        return figures


def read_tested_outcomes(folders: Sequence[Path]) -> list[TestedOutcomes]:
    """Read the test results of runs that predict outcomes.

    Raises:
        UserError: the files of a run do not belong together, or two runs have the same name.
    """
    check_names(folders)
    return [_read(folder) for folder in folders]


def _read(folder: Path) -> TestedOutcomes:
    metrics, sums = read_checked(folder, OutcomeMetrics)
    return TestedOutcomes(
        folder.resolve().name,
        read_outcome_table(folder / SLIDES),
        metrics,
        EvaluationSettings(**metrics.settings()),
        sums,
    )
