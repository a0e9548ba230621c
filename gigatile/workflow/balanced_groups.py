"""Groups of jobs of about the same size: Snakemake forms them in an arbitrary order.

A cluster runs the jobs of a group one after the other, so that the group with the largest slides
ends last. Here, each group gets about as many bytes of input as any other, and at most as many jobs
as `group-components` says.
"""

import heapq
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gigatile.slides.slide_files import size_and_time_of


def balance_groups() -> None:
    """Replace this function of Snakemake in this process."""
    import snakemake.dag  # only after snakemake.workflow can it be imported

    snakemake.dag.group_into_chunks = _balanced


def _balanced(size: int, components: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield groups of at most `size` components, as few as possible.

    The largest component that is left goes into the group with the fewest bytes.
    """
    sized = sorted(((_bytes(item), _name(item), item) for item in components), reverse=True)
    groups: list[list[Any]] = [[] for _ in range(-(-len(sized) // size))]
    open_groups = [(0, number) for number in range(len(groups))]
    for amount, _, item in sized:
        total, number = heapq.heappop(open_groups)
        groups[number].append(item)
        if len(groups[number]) < size:
            heapq.heappush(open_groups, (total + amount, number))
    yield from map(tuple, groups)


def _bytes(group: Any) -> int:
    """Return the size of the input files of a group's jobs; files that do not exist yet are 0."""
    return sum(_size(Path(file)) for job in group.jobs for file in job.input)


def _size(path: Path) -> int:
    try:
        return size_and_time_of(path)[0]
    except OSError:
        return 0


def _name(group: Any) -> str:
    return min(str(job.output) for job in group.jobs)
