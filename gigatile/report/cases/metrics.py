"""Read the metrics of cases and check that they fit the scored cases."""

import math
from collections.abc import Sequence
from pathlib import Path

from gigatile.errors import UserError
from gigatile.evaluation.metrics_file import CaseMetrics, Mean
from gigatile.evaluation.segmentation import EMPTY, METRICS
from gigatile.json_models import read_model
from gigatile.report.cases.inputs import ScoredCase, TrainedSegmenter
from gigatile.report.task_report import Run
from gigatile.volumes.state import CaseState

# Both files hold six decimals.
ROUNDING = 2e-6
# The numbers of lesions in metrics.json, and the columns of cases.tsv.
LESIONS = {
    "reference": "lesions",
    "missed": "missed_lesions",
    "false_positives": "false_positive_lesions",
}


CaseRun = Run[CaseState, ScoredCase, TrainedSegmenter, CaseMetrics]


def read_metrics(path: Path, model: TrainedSegmenter, scored: Sequence[ScoredCase]) -> CaseMetrics:
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
        for metric in METRICS:
            stated: Mean = getattr(metrics, metric).per_region[region]
            values = [value for row in rows if (value := getattr(row, metric)) is not None]
            mean = math.fsum(values) / len(values) if values else None
            near = mean is not None and math.isclose(
                mean, math.nan if stated.value is None else stated.value, abs_tol=ROUNDING
            )
            if stated.n != len(values) or not (near or mean is stated.value is None):
                raise stale(f"{metric} of {region}")
        lesions = metrics.lesions[region]
        for name, column in LESIONS.items():
            if getattr(lesions, name) != sum(getattr(row, column) for row in rows):
                raise stale(f"number of lesions of {region}")
        for where in EMPTY:
            if getattr(metrics.empty[region], where) != sum(row.empty == where for row in rows):
                raise stale(f"number of cases without {region}")
    return metrics
