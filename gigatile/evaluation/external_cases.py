"""External validation of a segmentation of volumes: cases that had no part in its training."""

from collections.abc import Mapping, Sequence

import pandas as pd

from gigatile.evaluation.external_file import Difference, ExternalFile, LeftOut
from gigatile.evaluation.metrics_file import CaseMetrics, Interval, RegionMeans
from gigatile.evaluation.segmentation import METRICS, evaluate_cases
from gigatile.evaluation.two_cohorts import difference, rows_by_site
from gigatile.json_models import Written
from gigatile.settings.evaluate import EvaluationSettings

# The name of the mean over the regions, next to the names of the regions.
ALL_REGIONS = "mean of the regions"


class CaseSite(Written):
    """The figures of the cases of a site, each the mean over the regions.

    Attributes:
        n, patients: number of cases, and of their patients.
    """

    n: int
    patients: int
    dice: Interval
    hd95_mm: Interval


class ExternalCaseMetrics(ExternalFile):
    """The content of external/metrics.json of cases.

    Attributes:
        metrics: of the new cohort; None: no case was left.
        differences: from the test split, by the name of the metric and of the region.
        sites: by name, at most 40 with the most patients; empty if the sheet names fewer than two.
    """

    regions: list[str]
    metrics: CaseMetrics | None
    differences: dict[str, dict[str, Difference]]
    sites: dict[str, CaseSite]


def figures_of(means: RegionMeans) -> dict[str, Interval]:
    """Return the means of a metric by region, and over all regions."""
    return {**means.per_region, ALL_REGIONS: means.mean}


def evaluate_external_cases(
    table: pd.DataFrame,
    sites: Mapping[str, str],
    left_out: Sequence[LeftOut],
    reference: CaseMetrics,
    settings: EvaluationSettings,
    *,
    compared: bool,
    inputs: Mapping[str, str],
) -> ExternalCaseMetrics:
    """Compute the figures of new cases, and their differences from those of the test split.

    Args:
        table: a row per region of each case that counts, as from `segmentation.read_cases`.
        sites: the site of each case, by its id; empty: not given.
        left_out: cases that count in no figure.
        reference: the figures of the test split.
        settings: number of draws for the intervals, and their seed.
        compared: whether the new cases were compared with the cohort of the model.
        inputs: the SHA-256 of the files, by name.
    """
    regions, metrics = reference.regions, None
    differences: dict[str, dict[str, Difference]] = {}
    if len(table):
        metrics = evaluate_cases(table, regions, settings, {})
        for name in METRICS:
            old = figures_of(getattr(reference, name))
            new = figures_of(getattr(metrics, name))
            differences[name] = {region: difference(new[region], old[region]) for region in new}
    by_site = {}
    for site, rows in rows_by_site(table, "case", sites).items():
        of_site = evaluate_cases(rows, regions, settings, {})
        by_site[site] = CaseSite(
            n=of_site.n,
            patients=of_site.patients,
            dice=of_site.dice.mean,
            hd95_mm=of_site.hd95_mm.mean,
        )
    return ExternalCaseMetrics(
        regions=regions,
        metrics=metrics,
        differences=differences,
        sites=by_site,
        left_out=list(left_out),
        compared=compared,
        inputs=dict(inputs),
    )
