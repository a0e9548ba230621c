"""The figures of evaluation/metrics.json of volumes, and whether they are those of the cases."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from gigatile.errors import UserError
from gigatile.evaluation.segmentation import FIGURES
from gigatile.report.case_inputs import ScoredCase
from gigatile.report.metrics import Interval, Intervals

# Both files hold six decimals.
ROUNDING = 2e-6


class _Figures(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Mean(Interval):
    """A mean over the `n` cases for which the figure is defined, and its interval."""

    n: int


class OfRegions(_Figures):
    """A figure of each region, and the mean of these."""

    mean: Mean
    per_region: dict[str, Mean]


class Empty(_Figures):
    """How many cases lack a region in the truth, in the prediction, or in both."""

    truth: int
    prediction: int
    both: int


class CaseMetrics(_Figures):
    """evaluation/metrics.json."""

    regions: list[str]
    hd95: Literal["surface", "voxels"]
    intervals: Intervals
    n: int
    patients: int
    dice: OfRegions
    hd95_mm: OfRegions
    sensitivity: OfRegions
    specificity: OfRegions
    empty: dict[str, Empty]
    inputs: dict[str, str]

    @model_validator(mode="after")
    def _complete(self) -> "CaseMetrics":
        parts: dict[str, dict[str, Any]] = {
            name: getattr(self, name).per_region for name in FIGURES
        }
        for name, part in (parts | {"empty": self.empty}).items():
            if missing := [region for region in self.regions if region not in part]:
                raise ValueError(f"{name}: nothing of region {missing[0]!r}")
        return self


def check_means(metrics: CaseMetrics, scored: Sequence[ScoredCase], source: Path) -> None:
    """Refuse metrics that are not the means of the very figures that the page lists.

    Raises:
        UserError: a mean, or a number of cases, is another.
    """

    def stale(what: str) -> UserError:
        return UserError(
            f"{source}: its {what} is not what evaluation/cases.tsv gives; one of the two is "
            "stale, run the evaluation again"
        )

    if metrics.n != len(scored):
        raise stale(f"number of cases, {metrics.n},")
    for region in metrics.regions:
        rows = [one.regions[region] for one in scored]
        for figure in FIGURES:
            stated: Mean = getattr(metrics, figure).per_region[region]
            values = [value for row in rows if (value := getattr(row, figure)) is not None]
            mean = math.fsum(values) / len(values) if values else None
            near = mean is not None and math.isclose(
                mean, math.nan if stated.value is None else stated.value, abs_tol=ROUNDING
            )
            if stated.n != len(values) or not (near or mean is stated.value is None):
                raise stale(f"{figure} of {region}")
        for what in Empty.model_fields:
            if getattr(metrics.empty[region], what) != sum(row.empty == what for row in rows):
                raise stale(f"number of cases that lack {region}")
