"""What a run will read from object stores."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from gigatile.planning.costs import PlannedJob
from gigatile.settings.whole import Settings
from gigatile.stores.addresses import is_remote
from gigatile.stores.sources import size_and_time, unreadable
from gigatile.tasks import find_task

# The stages with a job for each slide or case, and how much of a file they read.
STAGES = {"tile": "read in part", "tile_new": "read in part", "prepare": "", "prepare_new": ""}


def describe_stored(settings: Settings, jobs: Iterable[PlannedJob]) -> str:
    """Return a line about files in stores that the planned jobs read; empty: there are none.

    It has the numbers of slides or cases in stores and of all, and the size of their files.

    Args:
        settings: of the run. Their paths are relative to the current folder.
        jobs: of the plan.

    Raises:
        OSError: a store does not answer.
    """
    planned = [(job.stage, job.member) for job in jobs if job.member and job.stage in STAGES]
    if not planned:
        return ""
    stored = _files(settings, {stage for stage, _ in planned})
    read = {key: stored[key] for key in planned if stored.get(key)}
    if not read:
        return ""
    unit = find_task(settings.task).unit
    paths = [path for files in read.values() for path in files]
    unreadable(paths)  # asks for all of them at once
    gigabytes = sum(size_and_time(path)[0] for path in paths) / 1e9
    how = next(STAGES[stage] for stage, _ in read)
    work = "tile" if how else "prepare"
    line = f"in object stores: {len(read):,} of {len(planned):,} {unit}s to {work}"
    return f"{line}, {gigabytes:,.1f} GB" + (f"; {how}" if how else "")


def _files(settings: Settings, stages: set[str]) -> dict[tuple[str, str], Sequence[Path]]:
    """Return the files in stores of each slide or case, by stage and id."""
    task = find_task(settings.task)
    files: dict[tuple[str, str], Sequence[Path]] = {}
    for sheet, labelled, names in (
        (settings.samples, True, ("tile", "prepare")),
        (settings.predict.samples, False, ("tile_new", "prepare_new")),
    ):
        for stage in stages.intersection(names):
            if not sheet:
                continue
            members = task.read_sheet(Path(sheet), settings, labelled, lambda path: True, False)
            for member in members:
                files[stage, member.id] = list(filter(is_remote, member.files))
    return files
