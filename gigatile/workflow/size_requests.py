"""Requests of time and memory by the size of the files, and by what earlier jobs used.

They are those of the jobs that prepare slides, cases or images. The record of each job has its time
and its memory. If a run has enough of them, the next requests follow from them; otherwise they are
estimates on the safe side.
"""

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from gigatile.provenance.output_records import OutputRecord, records_of
from gigatile.slides.slide_files import size_and_time_of
from gigatile.stores.addresses import is_remote
from gigatile.workflow.inputs import HasFiles
from gigatile.workflow.invocation import Invocation
from gigatile.workflow.snakemake_internals import declare_parameters

# With fewer jobs, a run does not show what the next ones need.
LEAST_JOBS = 20
# Files below this size take as long as those of this size.
SMALLEST_MB = 10
# A request is this many times what all but a few jobs used. Beyond, Snakemake tries again with
# twice as much.
RESERVE, USUAL = 2, 0.95
# Minutes of a job of any size, and MB of Snakemake and Python.
MINUTES, BASE_MB = 4, 500


@dataclass(frozen=True)
class Usage:
    """What all but a few jobs used: seconds per MB of their files, and MB of memory."""

    seconds_per_mb: float
    peak_mb: float


@dataclass(frozen=True)
class Work:
    """The jobs of a stage, and what they need as long as none was measured.

    Attributes:
        rules: their names, in this run and in earlier ones.
        folder: of their records, in the folder of a run.
        seconds_per_mb, mem_mb: on the safe side.
        mb_in_store: size of a file that is not on a disk.
        stall_minutes: the time limit for a slide, case or image without progress.
    """

    rules: tuple[str, ...]
    folder: str
    seconds_per_mb: float
    mem_mb: int
    mb_in_store: float
    stall_minutes: float


def measured_usage(results: Path, work: Work) -> Usage | None:
    """Return what the jobs used in the run that had such jobs last; None if there are too few.

    Jobs in which reading stalled do not count.

    Args:
        results: folder of all runs.
        work: of the jobs.
    """
    runs = [run for run in results.glob("*") if (run / "provenance").is_dir()]
    for run in sorted(runs, key=lambda run: (run / "provenance").stat().st_mtime, reverse=True):
        jobs = [
            (record.seconds, record.source.bytes, record.peak_mb)
            for rule in work.rules
            for record in records_of(run, rule).values()
            if _is_of(record, work.folder)
            and record.seconds
            and record.source
            and record.peak_mb
            and not record.stalled_minutes
        ]
        if len(jobs) >= LEAST_JOBS:
            seconds, sizes, peaks = np.array(jobs, np.float64).T
            rates = seconds / np.maximum(sizes / 1e6, SMALLEST_MB)
            return Usage(float(np.quantile(rates, USUAL)), float(np.quantile(peaks, USUAL)))
    return None


def _is_of(record: OutputRecord, folder: str) -> bool:
    """Return whether a job wrote into a folder: rules of different tasks have the same name."""
    return any(PurePosixPath(name).parent.name == folder for name in record.outputs)


class SizeRequests:
    """The resources `runtime` and `mem_mb` of the rules that prepare slides, cases or images.

    Args:
        invocation: of this process. Only the main process submits jobs, and reads records.
        results: folder of all runs.
        work: of the jobs.
    """

    def __init__(self, invocation: Invocation, results: Path, work: Work) -> None:
        self._invocation = invocation
        self._results = results
        self._work = work

    @cached_property
    def _usage(self) -> Usage | None:
        if not self._invocation.is_main_process:
            return None
        return measured_usage(self._results, self._work)

    def minutes(self, *sheets: Mapping[str, HasFiles]) -> Any:
        """Return the resource `runtime`, which grows with the files and doubles with each attempt.

        Three attempts of a single slide are enough for one that stalls.

        Args:
            sheets: slides, cases or parts by name. The first that has the name of a job counts:
                a slide with equal names in several sheets is most likely the same.
        """
        samples = ChainMap(*map(dict, sheets))

        @declare_parameters
        def runtime(wildcards: Any, attempt: int) -> int:
            usage = self._usage
            per_mb = self._work.seconds_per_mb if usage is None else usage.seconds_per_mb
            (name,) = wildcards
            seconds = RESERVE * per_mb * max(self._megabytes(samples.get(name)), SMALLEST_MB)
            least = max(MINUTES, self._work.stall_minutes / 2)
            return int(np.ceil(least + seconds / 60)) * 2 ** (attempt - 1)

        return runtime

    def mem_mb(self) -> Any:
        """Return the resource `mem_mb`, which doubles with each attempt; none needs more."""

        @declare_parameters
        def memory(wildcards: Any, attempt: int) -> int:
            usage = self._usage
            amount: float = self._work.mem_mb
            if usage is not None:
                amount = BASE_MB + RESERVE * usage.peak_mb
            return int(amount) * 2 ** (attempt - 1)

        return memory

    def _megabytes(self, sample: HasFiles | None) -> float:
        """Return the size of all files; a missing file is 0, and the job reports it."""
        if sample is None or not self._invocation.is_main_process:
            return 0
        return sum(map(self._size_of, sample.files))

    def _size_of(self, path: Path) -> float:
        if is_remote(path):
            return self._work.mb_in_store
        try:
            return size_and_time_of(path)[0] / 1e6
        except OSError:
            return 0
