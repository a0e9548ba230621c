"""The data of a run, for estimates."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from gigatile.cohort.sheet import Member
from gigatile.cohort.splits import assign
from gigatile.planning.costs import Cohort, mean_megapixels, megapixels_of_table
from gigatile.planning.stages import TaskPlan
from gigatile.settings.split import SPLITS
from gigatile.settings.whole import Settings
from gigatile.tasks import find_task, task_part
from gigatile.tasks.sheets import read_any_sheet

# Of a large cohort, the files of about so many slides are looked at.
_SAMPLED = 200


def cohort_of(settings: Settings, estimate: float, by_files: bool = False) -> Cohort:
    """Return the data of a run, with the megapixels of its results or of the estimate.

    If there is no model yet, the run is in progress, and its table counts the tiles.

    Args:
        settings: of the run. Their paths are relative to the current folder.
        estimate: of each unit, until it is prepared; see `TaskPlan.estimate`.
        by_files: whether small files lower the estimate.
    """
    values = settings.model_dump()
    plan: TaskPlan = task_part(settings.task, "planning").PLAN
    members: Sequence[Member] = []
    if not settings.predict.bundle:  # with one, there is no cohort
        members = read_any_sheet(Path(settings.samples), may_be_missing=lambda path: True)
    split_of = assign(members, settings.split)
    splits = [split_of[member.patient] for member in members]
    counts = {split: splits.count(split) for split in SPLITS}
    new = settings.predict.samples
    counts["new"] = len(read_any_sheet(Path(new), False, lambda path: True)) if new else 0
    estimated = estimate * plan.megapixels(values)
    if by_files and plan.most_megapixels is not None:
        some = members[:: 1 + len(members) // _SAMPLED]
        limits = [limit for member in some if (limit := plan.most_megapixels(member))]
        estimated = min([estimated, *([fmean(limits)] if limits else [])])
    run = Path("results") / settings.run
    return Cohort(
        counts,
        mean_megapixels(run)
        or megapixels_of_table(run / find_task(settings.task).table, plan, values)
        or estimated,
        settings.train.segments,
        settings.train.model,
        settings.train.ranks,
        plan,
        plan.per_epoch(values),
    )
