"""Reads the test results of runs that predict numbers or risks of slides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from gigatile.evaluation.outcome_table import read_outcome_table
from gigatile.evaluation.outcomes import OutcomeMetrics
from gigatile.evaluation.tested_runs import SLIDES, check_names, read_checked
from gigatile.settings.evaluate import EvaluationSettings


@dataclass(frozen=True)
class TestedOutcomes:
    """The test results of a run.

    Attributes:
        name: of its folder.
        kind: of its outcomes, `number` or `survival`.
        slides: a row per test slide; see `read_outcome_table`.
        settings: of its intervals.
        inputs: SHA-256 of its files, by name.
    """

    name: str
    kind: str
    slides: pd.DataFrame
    settings: EvaluationSettings
    inputs: Mapping[str, str]


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
        metrics.kind,
        read_outcome_table(folder / SLIDES),
        EvaluationSettings(**metrics.settings()),
        sums,
    )
