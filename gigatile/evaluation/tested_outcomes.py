"""Reads the test results of runs that predict numbers or risks of slides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from gigatile.errors import UserError
from gigatile.evaluation.outcome_table import read_outcome_table
from gigatile.evaluation.outcomes import OutcomeMetrics
from gigatile.evaluation.tested_runs import METRICS, SLIDES
from gigatile.files import read_json, sha256_of
from gigatile.json_models import read_model
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


def predicts_outcomes(folder: Path) -> bool:
    """Return whether a run has figures of outcomes, and not of classes."""
    path = folder / METRICS
    return path.is_file() and "kind" in read_json(path)


def read_tested_outcomes(folders: Sequence[Path]) -> list[TestedOutcomes]:
    """Read the test results of runs that predict outcomes.

    Raises:
        UserError: the files of a run do not belong together, or two runs have the same name.
    """
    runs = [_read(folder) for folder in folders]
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        raise UserError(f"runs of the same name: {', '.join(names)}; their names must differ")
    return runs


def _read(folder: Path) -> TestedOutcomes:
    name = folder.resolve().name
    metrics = read_model(OutcomeMetrics, folder / METRICS)
    sums = {path: sha256_of(folder / path) for path in (SLIDES, METRICS)}
    if metrics.inputs.get(SLIDES) != sums[SLIDES]:
        raise UserError(
            f"{folder / METRICS}: was computed from another version of {SLIDES}; run the workflow "
            "again"
        )
    return TestedOutcomes(
        name,
        metrics.kind,
        read_outcome_table(folder / SLIDES),
        EvaluationSettings(**metrics.settings()),
        {f"{name}/{path}": sha256 for path, sha256 in sums.items()},
    )
