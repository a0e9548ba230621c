"""The progress of a run, by stage: counts, rates, and the time that is left."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# A wild guess for stages without an estimate, in seconds.
UNKNOWN = 5.0
# Each job of these rules needs the previous one.
SEQUENTIAL = {"train"}


@dataclass
class Stage:
    """The jobs of a rule.

    Attributes:
        name: of the rule.
        total: number of its jobs.
        expected: estimated seconds of a job.
        done, failed: numbers of jobs.
        running: the times at which the jobs started that run now, by id.
        most_running: the largest number of jobs that ran at the same time.
        started, ended: times in seconds; None: not yet.
        worked: sum of the seconds of the finished jobs.
    """

    name: str
    total: int
    expected: float
    done: int = 0
    failed: int = 0
    running: dict[int, float] = field(default_factory=dict)
    most_running: int = 0
    started: float | None = None
    ended: float | None = None
    worked: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether no job is left."""
        return self.done + self.failed >= self.total

    def rate(self, now: float) -> float | None:
        """Return the finished jobs per second; None before the first one."""
        if self.started is None or not self.done:
            return None
        return self.done / max((self.ended or now) - self.started, 1e-3)

    def seconds_left(self, now: float, cores: int, correction: float = 1.0) -> float:
        """Return the estimated seconds until the last job ends.

        Args:
            now: the time.
            cores: the number of jobs that are expected to run at the same time.
            correction: how many times longer than expected the jobs of this run take.
        """
        if self.is_over:
            return 0.0
        left = self.total - self.done - self.failed
        expected = self.worked / self.done if self.done else self.expected * correction
        begun = sum(min(now - start, expected) for start in self.running.values())
        # On a cluster, or if jobs have several threads, it is not the number of cores.
        parallel = 1 if self.name in SEQUENTIAL else self.most_running or cores
        return max(left * expected - begun, 0.0) / max(min(parallel, left), 1)


class Progress:
    """The state of a run, from the events of Snakemake.

    Args:
        expected: returns estimated seconds of a job by stage, given the number of jobs by stage.
        cores: the number of jobs that are expected to run at the same time.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        expected: Callable[[Mapping[str, int]], Mapping[str, float]],
        cores: int,
        clock: Callable[[], float],
    ) -> None:
        self.stages: dict[str, Stage] = {}
        self.failures: list[Failure] = []
        self._expected, self._cores, self._clock = expected, cores, clock
        self._jobs: dict[int, dict[str, Any]] = {}

    def update(self, event: Mapping[str, Any]) -> Iterator["Stage | Failure"]:
        """Process an event; yield stages that have started or ended, and failures."""
        now = self._clock()
        match event["event"]:
            case "run_info" if not self.stages:
                counts = {
                    name: int(count)
                    for name, count in (event["stats"] or {}).items()
                    if name not in ("total", "all")
                }
                self.stages = {name: Stage(name, count, UNKNOWN) for name, count in counts.items()}
                self._estimate()
            case "job_info":
                self._jobs[event["jobid"]] = dict(event)
                yield from self._started(event["jobid"], now)
            case "job_started":
                for job in event["jobs"] or ():
                    yield from self._started(job, now)
            case "job_finished":
                yield from self._ended(event["job_id"], now, failed=False)
            case "job_error":
                yield from self._failed(event, now)
            case "group_error":
                for info in event["job_error_info"] or ():
                    yield from self._failed(info, now)

    def _estimate(self) -> None:
        """Update the estimated durations of all stages."""
        expected = self._expected({name: stage.total for name, stage in self.stages.items()})
        for name, stage in self.stages.items():
            stage.expected = expected.get(name, UNKNOWN)

    def _stage(self, job: int) -> Stage | None:
        return self.stages.get(self._jobs.get(job, {}).get("rule_name", ""))

    def _started(self, job: int, now: float) -> Iterator[Stage]:
        stage = self._stage(job)
        if stage is None or job in stage.running:
            return
        stage.running[job] = now
        stage.most_running = max(stage.most_running, len(stage.running))
        if stage.started is None:
            stage.started = now
            yield stage

    def _ended(self, job: int, now: float, failed: bool) -> Iterator[Stage]:
        stage = self._stage(job)
        if stage is None:
            return
        start = stage.running.pop(job, now)
        if failed:
            stage.failed += 1
        else:
            stage.done += 1
            stage.worked += now - start
            # After 1, 2, 4, … jobs and after the last one: more of the data is known then.
            if stage.done & (stage.done - 1) == 0 or stage.is_over:
                self._estimate()
        if stage.is_over:
            stage.ended = now
            yield stage

    def _failed(self, event: Mapping[str, Any], now: float) -> Iterator["Stage | Failure"]:
        job = event["jobid"]
        known = self._jobs.get(job, {})
        logs = event.get("log") or known.get("log") or ()
        names = tuple(map(str, (known.get("wildcards") or {}).values()))
        failure = Failure(event["rule_name"], names, tuple(logs))
        self.failures.append(failure)
        yield failure
        # Snakemake may run the job again: count its failure only until then.
        stage = self._stage(job)
        if stage is not None:
            stage.running.pop(job, None)

    def seconds_left(self) -> float:
        """Return the estimated seconds until the run ends: the stages follow each other."""
        return sum(map(self.stage_seconds_left, self.stages.values()))

    def stage_seconds_left(self, stage: Stage) -> float:
        """Return the estimated seconds until a stage ends, not counting those before it."""
        return stage.seconds_left(self._clock(), self._cores, self._correction())

    def _correction(self) -> float:
        """Return how many times longer than expected the jobs of this run take."""
        stages = self.stages.values()
        expected = sum(stage.done * stage.expected for stage in stages)
        return sum(stage.worked for stage in stages) / expected if expected else 1.0

    def counts(self) -> Counter[str]:
        """Return the number of finished jobs by stage."""
        return Counter({name: stage.done for name, stage in self.stages.items() if stage.done})


@dataclass(frozen=True)
class Failure:
    """A job that failed.

    Attributes:
        stage: its rule.
        names: what it worked on, for example the slide.
        logs: paths of its log files.
    """

    stage: str
    names: tuple[str, ...]
    logs: tuple[str, ...]

    def reason(self) -> str:
        """Return the error in its log: the last line with one, else the last line."""
        for path in self.logs:
            try:
                text = Path(path).read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            errors = [line for line in lines if line.lower().startswith("error")]
            if lines:
                return (errors or lines)[-1]
        return "it left no message"


def duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:02.0f} min"
