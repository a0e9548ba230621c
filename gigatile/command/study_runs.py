"""Runs Snakemake for several configurations, some of them at the same time."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from gigatile.command.configuration import folder_of_paths
from gigatile.command.display import Display, stage_line
from gigatile.command.progress import Progress, Stage, duration
from gigatile.command.run import log_file, warnings_in
from gigatile.command.snakemake import error_message, run_snakemake
from gigatile.planning.durations import Durations
from gigatile.settings.whole import Settings


@dataclass(frozen=True)
class Job:
    """A call of Snakemake.

    Attributes:
        name: of the run.
        configuration: its file.
        settings: its settings.
        targets: to make; none: all.
    """

    name: str
    configuration: Path
    settings: Settings
    targets: tuple[str, ...] = ()


class _NamedDisplay(Display):
    """Prints a line when a stage ends or a job fails, with the name of the run."""

    def __init__(self, name: str, progress: Progress, console: Console) -> None:
        super().__init__(progress, console)
        self._name, self._progress = name, progress

    def _stage_changed(self, stage: Stage) -> None:
        if stage.is_over:
            self._print(Text(stage_line(stage, self._progress)))

    def _print(self, text: RenderableType) -> None:
        super()._print(Text(f"{self._name}  ", style="dim").append_text(text))  # type: ignore[arg-type]


class Runner:
    """Runs jobs.

    Args:
        options: of Snakemake.
        at_once: the number of jobs that run at the same time.
        console: where progress is printed.
    """

    def __init__(self, options: Sequence[str], at_once: int, console: Console) -> None:
        self._options, self._at_once, self._console = options, at_once, console
        self._stopped = threading.Event()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._warned: set[str] = set()

    def run(self, jobs: Sequence[Job]) -> list[str]:
        """Run jobs; return the names of those that failed. If one fails, the others go on.

        Raises:
            KeyboardInterrupt: the user, or SIGTERM, ended this process; all jobs have ended.
        """
        with self._ended_with_this_process(), ThreadPoolExecutor(self._at_once) as pool:
            running = [pool.submit(self._run, job) for job in jobs]
            try:
                statuses = [future.result() for future in running]
            except BaseException:
                self._stopped.set()
                raise
        return [job.name for job, status in zip(jobs, statuses, strict=True) if status]

    @contextmanager
    def _ended_with_this_process(self) -> Iterator[None]:
        """End all jobs with SIGTERM; an interruption with Ctrl-C reaches them by itself."""

        def end(*_: Any) -> None:
            self._stopped.set()
            for process in list(self._processes):
                process.terminate()
            raise KeyboardInterrupt

        previous = signal.signal(signal.SIGTERM, end)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, previous)

    def _run(self, job: Job) -> int:
        if self._stopped.is_set():
            return 1
        start = time.monotonic()
        log = log_file(folder_of_paths(job.configuration))
        progress = Progress(Durations(job.settings).seconds, os.cpu_count() or 1, time.monotonic)
        display = _NamedDisplay(job.name, progress, self._console)
        options = [*self._options, *job.targets]
        status = run_snakemake(job.configuration, options, log, display.update, self._started)
        for line in warnings_in(log):
            if line not in self._warned:
                self._warned.add(line)
                self._console.print(line, style="yellow", soft_wrap=True)
        took = duration(time.monotonic() - start)
        if status == 0:
            done = sum(progress.counts().values())
            self._print(job, f"done after {took}, {done:,} job(s)" if done else "up to date")
        else:
            failed = {(failure.stage, failure.names) for failure in progress.failures}
            reason = f"{len(failed)} job(s) failed" if failed else "stopped"
            if not any(stage.started is not None for stage in progress.stages.values()):
                reason = error_message(log.read_text(encoding="utf-8", errors="replace"))
            self._print(job, f"failed after {took}: {reason}\n  full log: {log}", "red")
        return status

    def _started(self, process: subprocess.Popen[bytes]) -> None:
        self._processes.add(process)
        # SIGTERM may have come before the process was known.
        if self._stopped.is_set():
            process.terminate()

    def _print(self, job: Job, text: str, style: str = "") -> None:
        self._console.print(Text(f"{job.name}  {text}", style=style), soft_wrap=True)
