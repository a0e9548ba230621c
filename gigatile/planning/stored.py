"""What a run will read from object stores."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gigatile.planning.costs import PlannedJob
from gigatile.settings.whole import Settings
from gigatile.stores.addresses import is_remote
from gigatile.stores.sources import REQUESTS, size_and_time
from gigatile.tasks.sheets import read_any_sheet


def stored_slides(settings: Settings, jobs: Iterable[PlannedJob]) -> list[Path]:
    """Return the slides in stores that the planned jobs tile.

    Args:
        settings: of the run. Their paths are relative to the current folder.
        jobs: of the plan.
    """
    planned = {(job.stage, job.slide) for job in jobs if job.slide}
    slides = []
    for stage, sheet in (("tile", settings.samples), ("tile_new", settings.predict.samples)):
        if not sheet or not any(name == stage for name, _ in planned):
            continue
        members = read_any_sheet(Path(sheet), stage == "tile", lambda path: True)
        slides += [
            path
            for member in members
            if (stage, member.id) in planned
            for path in member.files
            if is_remote(path)
        ]
    return slides


def describe_stored(slides: Sequence[Path], tiled: int) -> str:
    """Return a line about slides in stores: how many they are, and their size.

    Args:
        slides: in stores; at least one.
        tiled: number of all slides that will be tiled.

    Raises:
        OSError: a store does not answer.
    """
    with ThreadPoolExecutor(REQUESTS) as pool:
        gigabytes = sum(pool.map(_size, slides)) / 1e9
    return (
        f"in object stores: {len(slides):,} of {tiled:,} slides to tile, {gigabytes:,.1f} GB; "
        "read in part"
    )


def _size(slide: Path) -> int:
    return size_and_time(slide)[0]
