"""Estimated durations of the jobs of a run, for its progress."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from gigatile.errors import UserError
from gigatile.planning.costs import PlannedJob, Rate, estimate_seconds, measured_rates
from gigatile.planning.runs import cohort_of
from gigatile.settings.whole import Settings
from gigatile.tasks import task_part


class Durations:
    """Estimates how long the jobs of a run take; see `gigatile.planning.costs`.

    Args:
        settings: of the run. Their paths are relative to the current folder.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._plan = task_part(settings.task, "planning").PLAN

    @cached_property
    def _rates(self) -> Mapping[str, Rate]:
        return measured_rates(Path("results"), self._settings.train.model, self._plan)

    def seconds(self, counts: Mapping[str, int]) -> dict[str, float]:
        """Return the estimated seconds of a job by stage; stages without an estimate are missing.

        The estimates become better during a run: when its slides exist, and when their tiles are
        counted.

        Args:
            counts: number of jobs by stage.
        """
        train = self._settings.train
        try:
            cohort = cohort_of(self._settings, self._plan.estimate, by_files=True)
            rates = self._rates
        except UserError:  # no estimate is no reason to stop a run
            return {}
        jobs = {
            name: PlannedJob(
                name,
                cores=train.ranks * train.cores_per_rank if name == "train" else 1,
                # All segments are assumed to be as long as the last one.
                epoch=max(train.segments) if name == "train" else 0,
            )
            for name in counts
            if name in self._plan.stages
        }
        return {
            name: estimate_seconds(job, cohort, rates.get(name, Rate()))
            for name, job in jobs.items()
        }
