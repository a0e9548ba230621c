"""Predictions of new slides by several models: their mean, and how far the models agree."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from gigatile.evaluation.outcome_table import read_outcome_table
from gigatile.evaluation.outcomes import OutcomeMetrics
from gigatile.evaluation.slide_table import read_slide_table


class MeanPredictions(ABC):
    """How predictions of new slides are read and averaged."""

    @abstractmethod
    def read(self, path: Path) -> pd.DataFrame:
        """Read slides.tsv of new slides."""

    @abstractmethod
    def mean(self, tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
        """Return the slides with the mean predictions, and how far the models agree.

        Args:
            tables: of the models, in their order, with the same slides in any order.
        """

    @abstractmethod
    def stated(self) -> dict[str, Any]:
        """Return what the provenance of the predictions says of the models."""

    @abstractmethod
    def agreement(self, slides: pd.DataFrame, models: int) -> str:
        """Say how far so many models agree on slides; see `mean`."""


class MeanScores(MeanPredictions):
    """Scores of classes."""

    def __init__(self, classes: Sequence[str]) -> None:
        self._classes = list(classes)
        self._columns = [f"p_{name}" for name in classes]

    def read(self, path: Path) -> pd.DataFrame:
        """Read the scores of new slides."""
        return read_slide_table(path, self._classes, labelled=False)

    def mean(self, tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
        """Return slide, patient, p_<class>… (the means), call_mean, agreeing and deviation.

        `agreeing` is how many of the models have this class first, `deviation` that of the scores
        of this class over the models.
        """
        scores = values_of(tables, self._columns)
        mean = scores.mean(axis=0)
        called = mean.argmax(axis=1)
        table = tables[0][["slide", "patient"]].copy()
        table[self._columns] = mean.round(6)
        table["call_mean"] = [self._classes[number] for number in called]
        table["agreeing"] = (scores.argmax(axis=2) == called).sum(axis=0)
        of_called = scores[:, np.arange(len(called)), called]
        table["deviation"] = of_called.std(axis=0).round(6)
        return table

    def stated(self) -> dict[str, Any]:
        """Return the classes."""
        return {"classes": self._classes}

    def agreement(self, slides: pd.DataFrame, models: int) -> str:
        """Say on how many slides the models disagree."""
        return f"the models disagree on {int((slides['agreeing'] < models).sum())}"


class MeanOutcomes(MeanPredictions):
    """Numbers, or risks relative to an origin of each model; see `origin_of`."""

    def __init__(self, kind: Literal["number", "survival"], origins: Sequence[float]) -> None:
        self._kind, self._origins = kind, origins

    def read(self, path: Path) -> pd.DataFrame:
        """Read the predictions of new slides."""
        return read_outcome_table(path, labelled=False)

    def mean(self, tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
        """Return slide, patient, tiles, predicted (the mean), and deviation over the models."""
        values = values_of(self.relative(tables), ["predicted"])[..., 0]
        table = tables[0].copy()
        table["predicted"] = values.mean(axis=0).round(6)
        table["deviation"] = values.std(axis=0).round(6)
        return table

    def stated(self) -> dict[str, Any]:
        """Return the kind of the outcomes."""
        return {"kind": self._kind}

    def agreement(self, slides: pd.DataFrame, models: int) -> str:
        """Say how far the models are apart."""
        return f"the models deviate by up to {slides['deviation'].max():.4g}"

    def relative(self, tables: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
        """Return predictions relative to the origins of their models."""
        return [
            table.assign(predicted=(table["predicted"] - origin).round(6))
            for table, origin in zip(tables, self._origins, strict=True)
        ]


def origin_of(metrics: OutcomeMetrics) -> float:
    """Return what the predictions of a model are relative to; 0: of numbers."""
    return metrics.survival.threshold if metrics.survival else 0.0


def values_of(tables: Sequence[pd.DataFrame], columns: Sequence[str]) -> np.ndarray:
    """Return columns of the same slides, in the order of the first table: (tables, slides, n)."""
    order = tables[0]["slide"]
    return np.stack(
        [table.set_index("slide").loc[order, list(columns)].to_numpy(float) for table in tables]
    )
