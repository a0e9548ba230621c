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

import numpy as np
import pandas as pd

from gigatile.errors import UserError
from gigatile.evaluation.metrics import evaluate
from gigatile.evaluation.metrics_file import Metrics
from gigatile.evaluation.outcome_table import read_outcome_table
from gigatile.evaluation.outcomes import evaluate_outcomes
from gigatile.evaluation.slide_table import read_slide_table
from gigatile.evaluation.tested_outcomes import TestedOutcomes, read_tested_outcomes
from gigatile.evaluation.tested_runs import TestedRun, predicts_outcomes, read_tested

AnyTested = TestedRun | TestedOutcomes


class Pooling(ABC):
    """The test results of the folds, and how they are put together.

    Attributes:
        runs: of the folds, in the order in which they were given.
        kind: of the results, for messages.
    """

    runs: Sequence[AnyTested]
    kind: str

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

    @abstractmethod
    def read_new(self, path: Path) -> pd.DataFrame:
        """Read slides.tsv of new slides."""

    @abstractmethod
    def mean_of_new(self, tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
        """Return new slides with the mean predictions, and how far the models agree.

        Args:
            tables: of the runs, in their order; see `read_new`.
        """

    @abstractmethod
    def stated(self) -> dict[str, Any]:
        """Return what the provenance of the predictions of new slides says of the models."""

    @abstractmethod
    def agreement(self, slides: pd.DataFrame) -> str:
        """Say how far the models agree on new slides; see `mean_of_new`."""


class PooledClasses(Pooling):
    """Scores of classes."""

    kind = "set of classes"

    def __init__(self, runs: Sequence[TestedRun]) -> None:
        self.runs: Sequence[TestedRun] = runs
        self.classes = list(runs[0].classes)
        self._columns = [f"p_{name}" for name in self.classes]

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
        mean = _values([run.slides for run in self.runs], self._columns).mean(axis=0)
        table = first[["slide", "patient", "label"]].copy()
        table[self._columns] = mean
        table["call_mean"] = [self.classes[number] for number in mean.argmax(axis=1)]
        return table

    def evaluate(self, slides: pd.DataFrame, inputs: Mapping[str, str]) -> Metrics:
        """Compute the figures of slides."""
        return evaluate(slides, self.classes, self.runs[0].settings, inputs)

    def read_new(self, path: Path) -> pd.DataFrame:
        """Read the scores of new slides."""
        return read_slide_table(path, self.classes, labelled=False)

    def mean_of_new(self, tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
        """Return slide, patient, p_<class>… (the means), call_mean, agreeing and deviation.

        `agreeing` is how many of the models have this class first, `deviation` that of the scores
        of this class over the models.
        """
        scores = _values(tables, self._columns)
        mean = scores.mean(axis=0)
        called = mean.argmax(axis=1)
        table = tables[0][["slide", "patient"]].copy()
        table[self._columns] = mean.round(6)
        table["call_mean"] = [self.classes[number] for number in called]
        table["agreeing"] = (scores.argmax(axis=2) == called).sum(axis=0)
        of_called = scores[:, np.arange(len(called)), called]
        table["deviation"] = of_called.std(axis=0).round(6)
        return table

    def stated(self) -> dict[str, Any]:
        """Return the classes."""
        return {"classes": self.classes}

    def agreement(self, slides: pd.DataFrame) -> str:
        """Say on how many slides the models disagree."""
        unsure = int((slides["agreeing"] < len(self.runs)).sum())
        return f"the models disagree on {unsure}"


class PooledOutcomes(Pooling):
    """Numbers, or risks relative to the median risk of the validation split of their fold."""

    kind = "kind of outcomes"

    def __init__(self, runs: Sequence[TestedOutcomes]) -> None:
        self.runs: Sequence[TestedOutcomes] = runs
        self._origins = [
            run.metrics.survival.threshold if run.metrics.survival else 0.0 for run in runs
        ]
        self._is_survival = runs[0].kind == "survival"

    def predicts(self, run: AnyTested) -> Any:
        """Return the kind of the outcomes."""
        return run.kind if isinstance(run, TestedOutcomes) else None

    def together(self) -> pd.DataFrame:
        """Return the test slides of all folds."""
        tables = self._relative([run.slides for run in self.runs])
        return pd.concat(tables, ignore_index=True)

    def mean(self) -> pd.DataFrame:
        """Return the test slides with the means of the predictions."""
        tables = self._relative([run.slides for run in self.runs])
        mean = _values(tables, ["predicted"])[..., 0].mean(axis=0)
        return tables[0].assign(predicted=mean.round(6))

    def evaluate(self, slides: pd.DataFrame, inputs: Mapping[str, str]) -> Metrics:
        """Compute the figures of slides; the threshold of risks is 0, the origin of all folds."""
        threshold = 0.0 if self._is_survival else None
        return evaluate_outcomes(slides, threshold, self.runs[0].settings, inputs)

    def read_new(self, path: Path) -> pd.DataFrame:
        """Read the predictions of new slides."""
        return read_outcome_table(path, labelled=False)

    def mean_of_new(self, tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
        """Return slide, patient, tiles, predicted (the mean), and deviation over the models."""
        values = _values(self._relative(tables), ["predicted"])[..., 0]
        table = tables[0].copy()
        table["predicted"] = values.mean(axis=0).round(6)
        table["deviation"] = values.std(axis=0).round(6)
        return table

    def stated(self) -> dict[str, Any]:
        """Return the kind of the outcomes."""
        return {"kind": self.runs[0].kind}

    def agreement(self, slides: pd.DataFrame) -> str:
        """Say how far the models are apart."""
        return f"the models deviate by up to {slides['deviation'].max():.4g}"

    def _relative(self, tables: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
        """Return predictions relative to the origins of their runs."""
        return [
            table.assign(predicted=(table["predicted"] - origin).round(6))
            for table, origin in zip(tables, self._origins, strict=True)
        ]


def _values(tables: Sequence[pd.DataFrame], columns: Sequence[str]) -> np.ndarray:
    """Return columns of the same slides, in the order of the first table: (tables, slides, n)."""
    order = tables[0]["slide"]
    return np.stack(
        [table.set_index("slide").loc[order, list(columns)].to_numpy(float) for table in tables]
    )


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
