"""Estimated durations of the jobs of a run, for its progress."""

from collections.abc import Mapping
from pathlib import Path

from gigatile.errors import UserError
from gigatile.planning.costs import PlannedJob, Rate, estimate_seconds, measured_rates
from gigatile.planning.runs import cohort_of
from gigatile.settings.whole import Settings
from gigatile.tasks import task_part


def expected_seconds(settings: Settings, counts: Mapping[str, int]) -> dict[str, float]:
    """Return the estimated seconds of a job by stage; see `gigatile.planning.costs`.

    Stages without an estimate are missing.

    Args:
        settings: of the run. Their paths are relative to the current folder.
        counts: number of jobs by stage.
    """
    plan = task_part(settings.task, "planning").PLAN
    try:
        cohort = cohort_of(settings, plan.estimate)
        rates = measured_rates(Path("results"), settings.train.model, plan)
    except UserError:  # no estimate is no reason to stop a run
        return {}
    threads = settings.train.ranks * settings.train.cores_per_rank
    jobs = {
        name: PlannedJob(
            name,
            cores=threads if name == "train" else 1,
            # All segments are assumed to be as long as the last one.
            epoch=max(settings.train.segments) if name == "train" else 0,
        )
        for name in counts
        if name in plan.stages
    }
    return {
        name: estimate_seconds(job, cohort, rates.get(name, Rate())) for name, job in jobs.items()
    }
