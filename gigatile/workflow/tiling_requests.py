"""Time and memory that a slide's job requests: by the slide's size, and by what earlier jobs used.

The record of each tiled slide has the time and the memory of its job. If a run has enough of them,
the next requests follow from them; otherwise they are estimates on the safe side.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gigatile.provenance.output_records import records_of
from gigatile.settings.tiles import TileSettings
from gigatile.slides.slide_files import size_and_time_of
from gigatile.workflow.invocation import Invocation
from gigatile.workflow.snakemake_internals import declare_parameters

# With fewer tiled slides, a run does not show what the next ones need.
LEAST_SLIDES = 20
# Estimates: seconds per MB of a slide, and the size of a slide that is not on a disk.
SECONDS_PER_MB, SIZE_IN_STORE = 0.3, 1_000_000_000
# Slides below this size take as long as one of this size.
SMALLEST_MB = 10
# A request is this many times what all but a few jobs used. Beyond, Snakemake tries again with
# twice as much.
RESERVE, USUAL = 2, 0.95
# Minutes of a job of any size, and MB of Snakemake and Python.
MINUTES, BASE_MB = 4, 500


@dataclass(frozen=True)
class Usage:
    """What all but a few jobs used: seconds per MB of a slide, and MB of memory."""

    seconds_per_mb: float
    peak_mb: float


def measured_usage(results: Path, rules: tuple[str, ...]) -> Usage | None:
    """Return what tiling used in the run that tiled slides last; None if there are too few.

    Slides that stalled do not count.

    Args:
        results: folder of all runs.
        rules: those that tile slides.
    """
    runs = [run for run in results.glob("*") if (run / "provenance").is_dir()]
    for run in sorted(runs, key=lambda run: (run / "provenance").stat().st_mtime, reverse=True):
        jobs = [
            (record.seconds, record.source.bytes, record.peak_mb)
            for rule in rules
            for record in records_of(run, rule).values()
            if record.seconds and record.source and record.peak_mb and not record.stalled_minutes
        ]
        if len(jobs) >= LEAST_SLIDES:
            seconds, sizes, peaks = np.array(jobs, np.float64).T
            rates = seconds / np.maximum(sizes / 1e6, SMALLEST_MB)
            return Usage(float(np.quantile(rates, USUAL)), float(np.quantile(peaks, USUAL)))
    return None


class TilingRequests:
    """The resources `runtime` and `mem_mb` of the rules that tile slides.

    Args:
        invocation: of this process. Only the main process submits jobs, and reads records.
        results: folder of all runs.
        settings: of tiling.
    """

    def __init__(self, invocation: Invocation, results: Path, settings: TileSettings) -> None:
        self._invocation = invocation
        self._results = results
        self._settings = settings

    @cached_property
    def _usage(self) -> Usage | None:
        if not self._invocation.is_main_process:
            return None
        return measured_usage(self._results, ("tile", "tile_new"))

    def minutes(self) -> Any:
        """Return the resource `runtime`, which grows with the slide and doubles with each attempt.

        Three attempts of a single slide are enough for one that stalls.
        """

        @declare_parameters
        def runtime(wildcards: Any, input: Sequence[str], attempt: int) -> int:
            usage = self._usage
            per_mb = SECONDS_PER_MB if usage is None else usage.seconds_per_mb
            seconds = RESERVE * per_mb * max(self._size(input) / 1e6, SMALLEST_MB)
            least = max(MINUTES, self._settings.stall_minutes / 2)
            return int(np.ceil(least + seconds / 60)) * 2 ** (attempt - 1)

        return runtime

    def mem_mb(self) -> Any:
        """Return the resource `mem_mb`, which doubles with each attempt; no slide needs more."""

        @declare_parameters
        def memory(wildcards: Any, attempt: int) -> int:
            usage = self._usage
            amount: float = 1500 + 500 * self._settings.cores
            if usage is not None:
                amount = BASE_MB + RESERVE * usage.peak_mb
            return int(amount) * 2 ** (attempt - 1)

        return memory

    def _size(self, files: Sequence[str]) -> int:
        if not self._invocation.is_main_process:
            return 0
        try:
            return size_and_time_of(*map(Path, files))[0] or SIZE_IN_STORE
        except OSError:
            return 0  # the job reports it
