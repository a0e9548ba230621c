"""How the test results of the folds of a cross-validation are put together, for each kind.

Scores of classes are used as they are. Numbers, too. The logarithm of a hazard ratio is relative to
the mean patient of a fold's training split, so that the risks of two folds have different origins:
each is taken relative to the median risk of the validation split of its fold, which also divides
the patients of its report into two groups.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from gigatile.errors import UserError
from gigatile.evaluation.calibration import evaluate_scores
from gigatile.evaluation.calibration_file import CalibrationFile, OperatingPoints
from gigatile.evaluation.metrics import evaluate
from gigatile.evaluation.metrics_file import Metrics
from gigatile.evaluation.outcomes import evaluate_outcomes
from gigatile.evaluation.tested_outcomes import TestedOutcomes, read_tested_outcomes
from gigatile.evaluation.tested_runs import TestedRun, predicts_outcomes, read_tested
from gigatile.report.mean_predictions import (
    MeanOutcomes,
    MeanPredictions,
    MeanScores,
    origin_of,
    values_of,
)

AnyTested = TestedRun | TestedOutcomes


class Pooling(ABC):
    """The test results of the folds, and how they are put together.

    Attributes:
        runs: of the folds.
        kind: of the results, for messages.
        new: how predictions of new slides are put together.
    """

    runs: Sequence[AnyTested]
    kind: str
    new: MeanPredictions

    @abstractmethod
    def of(self, runs: Sequence[Any]) -> "Pooling":
        """Return the same of other runs."""

    @abstractmethod
    def predicts(self, run: AnyTested) -> Any:
        """Return what the models of all folds must have in common."""

    @abstractmethod
    def together(self) -> pd.DataFrame:
        """Return the test slides of all folds, of which each was tested by one model."""

    @abstractmethod
    def mean(self) -> pd.DataFrame:
        """Return the test slides, which all models have tested, with the means of the models."""

    @abstractmethod
    def evaluate(self, slides: pd.DataFrame, inputs: Mapping[str, str]) -> Metrics:
        """Compute the figures of such slides; `inputs`: the SHA-256 of their files, by name."""

    def calibrate(self, slides: pd.DataFrame, inputs: Mapping[str, str]) -> CalibrationFile | None:
        """Compute how scores agree with labels; None: there are no scores of classes."""
        return None


class PooledClasses(Pooling):
    """Scores of classes."""

    kind = "set of classes"

    def __init__(self, runs: Sequence[TestedRun]) -> None:
        self.runs: Sequence[TestedRun] = runs
        self.classes = list(runs[0].classes)
        self._columns = [f"p_{name}" for name in self.classes]
        self.new = MeanScores(self.classes)

    def of(self, runs: Sequence[TestedRun]) -> "PooledClasses":
        """Return the same of other runs."""
        return PooledClasses(runs)

    def predicts(self, run: AnyTested) -> Any:
        """Return the classes."""
        return list(run.classes) if isinstance(run, TestedRun) else None

    def together(self) -> pd.DataFrame:
        """Return the test slides of all folds."""
        slides = pd.concat([run.slides for run in self.runs], ignore_index=True)
        if any("call_vote" not in run.slides for run in self.runs):
            slides = slides.drop(columns="call_vote", errors="ignore")
        return slides

    def mean(self) -> pd.DataFrame:
        """Return the test slides with the means of the scores."""
        first = self.runs[0].slides
        mean = values_of([run.slides for run in self.runs], self._columns).mean(axis=0)
        table = first[["slide", "patient", "label"]].copy()
        table[self._columns] = mean
        table["call_mean"] = [self.classes[number] for number in mean.argmax(axis=1)]
        return table

    def evaluate(self, slides: pd.DataFrame, inputs: Mapping[str, str]) -> Metrics:
        """Compute the figures of slides."""
        return evaluate(slides, self.classes, self.runs[0].settings, inputs)

    def calibrate(self, slides: pd.DataFrame, inputs: Mapping[str, str]) -> CalibrationFile:
        """Compute how scores agree with labels. Thresholds are those of each model alone."""
        points = OperatingPoints.none(self.classes)
        return evaluate_scores(slides, points, self.runs[0].settings, inputs)


class PooledOutcomes(Pooling):
    """Numbers, or risks relative to the median risk of the validation split of their fold."""

    kind = "kind of outcomes"

    def __init__(self, runs: Sequence[TestedOutcomes]) -> None:
        self.runs: Sequence[TestedOutcomes] = runs
        self.new: MeanOutcomes = MeanOutcomes(
            runs[0].kind, [origin_of(run.metrics) for run in runs]
        )
        self._is_survival = runs[0].kind == "survival"

    def of(self, runs: Sequence[TestedOutcomes]) -> "PooledOutcomes":
        """Return the same of other runs."""
        return PooledOutcomes(runs)

    def predicts(self, run: AnyTested) -> Any:
        """Return the kind of the outcomes."""
        return run.kind if isinstance(run, TestedOutcomes) else None

    def together(self) -> pd.DataFrame:
        """Return the test slides of all folds."""
        tables = self.new.relative([run.slides for run in self.runs])
        return pd.concat(tables, ignore_index=True)

    def mean(self) -> pd.DataFrame:
        """Return the test slides with the means of the predictions."""
        tables = self.new.relative([run.slides for run in self.runs])
        mean = values_of(tables, ["predicted"])[..., 0].mean(axis=0)
        return tables[0].assign(predicted=mean.round(6))

    def evaluate(self, slides: pd.DataFrame, inputs: Mapping[str, str]) -> Metrics:
        """Compute the figures of slides; the threshold of risks is 0, the origin of all folds."""
        threshold = 0.0 if self._is_survival else None
        return evaluate_outcomes(slides, threshold, self.runs[0].settings, inputs)


def open_pooling(folders: Sequence[Path]) -> Pooling:
    """Read the test results of runs.

    Raises:
        UserError: a run was not evaluated, its files do not belong together, or some runs predict
            outcomes and others classes.
    """
    of_outcomes = [folder for folder in folders if predicts_outcomes(folder)]
    if not of_outcomes:
        return PooledClasses(read_tested(folders))
    if others := [folder for folder in folders if folder not in of_outcomes]:
        raise UserError(
            f"{of_outcomes[0]} predicts outcomes, {others[0]} does not; only the folds of one "
            "cross-validation can be pooled"
        )
    return PooledOutcomes(read_tested_outcomes(folders))
