"""The metrics of cases, evaluation/metrics.json."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator

from gigatile.errors import UserError
from gigatile.evaluation.segmentation import FIGURES
from gigatile.json_models import JsonModel, read_model
from gigatile.report.cases.inputs import CaseModel, ScoredCase
from gigatile.report.metrics import Interval, Metrics
from gigatile.report.task_report import Run
from gigatile.volumes.state import CaseState

# Both files hold six decimals.
ROUNDING = 2e-6


class Mean(Interval):
    """A mean over the `n` cases for which the metric is defined, and its interval."""

    n: int


class RegionMeans(JsonModel):
    """A metric of each region, and their mean."""

    mean: Mean
    per_region: dict[str, Mean]


class Empty(JsonModel):
    """Number of cases without a region in the reference, in the prediction, or in both."""

    truth: int
    prediction: int
    both: int


class CaseMetrics(Metrics):
    """evaluation/metrics.json."""

    regions: list[str]
    hd95: Literal["surface", "voxels"]
    n: int
    patients: int
    dice: RegionMeans
    hd95_mm: RegionMeans
    sensitivity: RegionMeans
    specificity: RegionMeans
    empty: dict[str, Empty]

    @model_validator(mode="after")
    def _complete(self) -> "CaseMetrics":
        parts: dict[str, dict[str, Any]] = {
            name: getattr(self, name).per_region for name in FIGURES
        }
        for name, part in (parts | {"empty": self.empty}).items():
            if missing := [region for region in self.regions if region not in part]:
                raise ValueError(f"{name}: no metrics of region {missing[0]!r}")
        return self

    def settings(self) -> dict[str, Any]:
        """Return the section `evaluate` of the settings."""
        return super().settings() | {"hd95": self.hd95}


CaseRun = Run[CaseState, ScoredCase, CaseModel, CaseMetrics]


def read_metrics(path: Path, model: CaseModel, scored: Sequence[ScoredCase]) -> CaseMetrics:
    """Read evaluation/metrics.json.

    Raises:
        UserError: it is damaged, its regions are not the model's, or its means are not those of the
            scored cases.
    """
    metrics, regions = read_model(CaseMetrics, path), list(model.volumes.region_labels)
    if metrics.regions != regions:
        raise UserError(
            f"{path}: its regions are {', '.join(metrics.regions)}, the model's "
            f"{', '.join(regions)}"
        )

    def stale(what: str) -> UserError:
        return UserError(
            f"{path}: its {what} differs from evaluation/cases.tsv; one of the two is out of date, "
            "run the evaluation again"
        )

    if metrics.n != len(scored):
        raise stale(f"number of cases, {metrics.n},")
    for region in regions:
        rows = [case.regions[region] for case in scored]
        for metric in FIGURES:
            stated: Mean = getattr(metrics, metric).per_region[region]
            values = [value for row in rows if (value := getattr(row, metric)) is not None]
            mean = math.fsum(values) / len(values) if values else None
            near = mean is not None and math.isclose(
                mean, math.nan if stated.value is None else stated.value, abs_tol=ROUNDING
            )
            if stated.n != len(values) or not (near or mean is stated.value is None):
                raise stale(f"{metric} of {region}")
        for where in Empty.model_fields:
            if getattr(metrics.empty[region], where) != sum(row.empty == where for row in rows):
                raise stale(f"number of cases without {region}")
    return metrics
