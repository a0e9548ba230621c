"""Estimate what a run will take: core-hours, GPU-hours, storage, and the longest chain of jobs.

A job takes a constant time to start, and a time that grows with its slides and the megapixels of
their tiles. For volumes, read cases and megavoxels instead. Speeds come from earlier runs whose
jobs lasted long enough, otherwise from `gigatile.planning.stages`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigatile.errors import UserError
from gigatile.files import read_json
from gigatile.models import ARCHITECTURES
from gigatile.planning.stages import TaskPlan
from gigatile.provenance.output_records import read_output_record, record_path, records_of
from gigatile.settings.split import SPLITS
from gigatile.tables import read_table
from gigatile.tasks import TASKS, find_task, task_part

# An earlier run with fewer megapixels does not show the storage per megapixel: other outputs
# outweigh its tiles.
MIN_MEGAPIXELS = 100


@dataclass(frozen=True)
class Cohort:
    """The data of a run.

    Attributes:
        slides: number of slides, or cases: `train`, `valid`, `test` and `new`.
        megapixels: mean megapixels of the tiles of a slide, or megavoxels of a case.
        segments: the last epoch of each segment of the training.
        model: name of the model.
        ranks: of the training.
        plan: of the task.
        per_epoch: megapixels or megavoxels of a slide or case that an epoch shows. None: all.
    """

    slides: Mapping[str, int]
    megapixels: float
    segments: Sequence[int]
    model: str
    ranks: int
    plan: TaskPlan
    per_epoch: float | None = None

    def megapixels_in(self, stage: str) -> float:
        """Return the megapixels per slide or case that a job of a stage processes."""
        if stage == "train" and self.per_epoch is not None:
            return self.per_epoch
        return self.megapixels

    def slides_in(self, stage: str, epoch: int = 0) -> int:
        """Return the number of slides that a job processes; in training, summed over its epochs."""
        count = self.slides
        if stage in self.plan.per_unit:
            return 1
        if stage.endswith("_new"):
            return count["new"]
        match stage:
            case "collect_training" | "write_shards":
                return count["train"] + count["valid"]
            case "train":
                earlier = [last for last in self.segments if last < epoch]
                return count["train"] * (epoch - max(earlier, default=0))
            case "validate" | "evaluate_valid" | "operating_points":
                return count["valid"]
            case "evaluate" | "calibration" | "report":
                return count["test"]
            case "predict" | "prediction_pages" | "external" | "external_page":
                return count["new"]
            case "choose_model":
                return 0
        return count["train"] + count["valid"] + count["test"]


@dataclass(frozen=True)
class PlannedJob:
    """A job of the plan: stage, cores, GPUs, slide or case; of training, the last epoch."""

    stage: str
    cores: int = 1
    gpus: int = 0
    epoch: int = 0
    member: str = ""


@dataclass(frozen=True)
class Rate:
    """Measurements of a stage in earlier runs.

    Attributes:
        megapixel: seconds of a job per megapixel; of training, seconds of a rank.
        storage: bytes per megapixel.
    """

    megapixel: float | None = None
    storage: float | None = None


@dataclass(frozen=True)
class Cost:
    """Estimate for the jobs of a stage.

    Attributes:
        jobs: number of jobs.
        seconds: of the longest job. Of training: the sum, as each job waits for the previous one.
        core_hours: sum over the jobs.
        gpu_hours: sum over the jobs.
        storage: bytes of their outputs.
        measured: whether the speed was measured in earlier runs.
    """

    jobs: int
    seconds: float
    core_hours: float
    gpu_hours: float
    storage: float
    measured: bool


def estimate_seconds(job: PlannedJob, cohort: Cohort, rate: Rate = Rate(), jobs: int = 1) -> float:
    """Return the estimated duration of a job, one of `jobs` of its stage."""
    stage = cohort.plan.stages[job.stage]
    divisor = jobs if job.stage in cohort.plan.divided else 1
    slides = cohort.slides_in(job.stage, job.epoch) / divisor
    megapixels = slides * cohort.megapixels_in(job.stage)
    workers = cohort.ranks if job.stage == "train" else 1
    if rate.megapixel is not None:
        per_megapixel = rate.megapixel
    elif stage.model:
        on_core, on_gpu = ARCHITECTURES[cohort.model].seconds
        per_megapixel = stage.model * (on_gpu if job.gpus else on_core * workers / job.cores)
    else:
        per_megapixel = stage.megapixel / job.cores
    return stage.start + slides * stage.slide + megapixels * per_megapixel / workers


def estimate_costs(
    jobs: Sequence[PlannedJob], cohort: Cohort, rates: Mapping[str, Rate]
) -> dict[str, Cost]:
    """Return the costs of the jobs by stage, in the order of the stages."""
    by_stage: dict[str, list[PlannedJob]] = defaultdict(list)
    for job in jobs:
        by_stage[job.stage].append(job)
    costs = {}
    for name, stage in cohort.plan.stages.items():
        if name not in by_stage:
            continue
        rate = rates.get(name, Rate())
        jobs_of_stage = len(by_stage[name])
        seconds = [estimate_seconds(job, cohort, rate, jobs_of_stage) for job in by_stage[name]]
        pairs = list(zip(by_stage[name], seconds, strict=True))
        storage = stage.storage if rate.storage is None else rate.storage
        slides = sum(cohort.slides_in(name, job.epoch) for job in by_stage[name])
        slides //= jobs_of_stage if name in cohort.plan.divided else 1
        costs[name] = Cost(
            jobs=len(seconds),
            seconds=sum(seconds) if name == "train" else max(seconds),
            core_hours=sum(job.cores * duration for job, duration in pairs) / 3600,
            gpu_hours=sum(job.gpus * duration for job, duration in pairs) / 3600,
            storage=storage * slides * cohort.megapixels,
            measured=rate.megapixel is not None,
        )
    return costs


def longest_chain(costs: Mapping[str, Cost], plan: TaskPlan) -> tuple[float, list[str]]:
    """Return the duration of the longest chain of dependent jobs in seconds, and its stages."""
    chains: dict[str, tuple[float, list[str]]] = {}
    for name, stage in plan.stages.items():
        seconds, names = max((chains[other] for other in stage.after), default=(0.0, []))
        cost = costs.get(name)
        chains[name] = (seconds + cost.seconds, [*names, name]) if cost else (seconds, names)
    return max(chains.values())


# --- Earlier runs


def measured_rates(results: Path, model: str, plan: TaskPlan) -> dict[str, Rate]:
    """Return the measurements of earlier runs by stage.

    A speed is returned if the jobs worked at least as long as they took to start. For stages that
    run a model, only runs with the same model count.

    Args:
        results: the folder that contains all runs.
        model: name of the model.
        plan: of the task; runs of other tasks are ignored.
    """
    seconds: dict[str, float] = defaultdict(float)
    starts: dict[str, float] = defaultdict(float)
    megapixels: dict[str, float] = defaultdict(float)
    storage: dict[str, float] = defaultdict(float)
    for run in sorted(results.glob("*/")):
        cohort = _cohort_of(run)
        if cohort is None or cohort.plan is not plan:
            continue
        for name, stage in cohort.plan.stages.items():
            if not (stage.megapixel or stage.model):
                continue
            if stage.model and cohort.model != model:
                continue
            durations = _durations(run, name)
            divisor = len(durations) if name in plan.divided else 1
            for job, duration in durations.items():
                epoch = int(job.name) if job.name.isdecimal() and stage.model else 0
                if duration is None or (epoch and epoch not in cohort.segments):
                    continue
                work = cohort.slides_in(name, epoch) * cohort.megapixels_in(name) / divisor
                workers = cohort.ranks if name == "train" else 1
                seconds[name] += (duration - stage.start) * workers
                starts[name] += stage.start * workers
                megapixels[name] += work
                if stage.storage:
                    storage[name] += _output_bytes(record_path(run, *job.parts))
    return {
        name: Rate(
            seconds[name] / work if seconds[name] >= starts[name] else None,
            storage[name] / work if storage[name] and work >= MIN_MEGAPIXELS else None,
        )
        for name, work in megapixels.items()
        if work
    }


def mean_megapixels(run: Path) -> float | None:
    """Return the mean megapixels of the tiles of a slide in a run; None if it is incomplete."""
    cohort = _cohort_of(run)
    return None if cohort is None else cohort.megapixels


def megapixels_of_table(table: Path, plan: TaskPlan, settings: Mapping[str, Any]) -> float | None:
    """Return the mean megapixels of the tiles of a slide in a table; None if there is none yet."""
    try:
        rows = read_table(table, (plan.column,))
        total = sum(float(row[plan.column]) for row in rows)
    except (UserError, ValueError):
        return None
    return total / len(rows) * plan.megapixels(settings) if total else None


def _cohort_of(run: Path) -> Cohort | None:
    """Return the data of an earlier run; None if it has no model yet."""
    try:
        settings = read_json(run / "model/settings.json")
        if settings["task"] not in TASKS:
            return None
        table = find_task(settings["task"]).table
        plan: TaskPlan = task_part(settings["task"], "planning").PLAN
        rows = read_table(run / table, ("split", plan.column))
        megapixels = sum(float(row[plan.column]) for row in rows) * plan.megapixels(settings)
        model, ranks = settings["train"]["model"], settings["train"]["ranks"]
        new = run / "predictions" / table
        slides = {split: sum(row["split"] == split for row in rows) for split in SPLITS}
        slides["new"] = len(read_table(new)) if new.is_file() else 0
        # Those after the end of a training that stopped early took seconds.
        segments = sorted(
            int(path.stem)
            for path in (run / "segments").glob("????.json")
            if read_json(path).get("stopped_after") is None
        )
    except (UserError, ValueError, LookupError, TypeError):
        return None
    if not rows:
        return None
    per_epoch = plan.per_epoch(settings)
    return Cohort(slides, megapixels / len(rows), segments, model, ranks, plan, per_epoch)


def _durations(run: Path, stage: str) -> dict[Path, float | None]:
    """Return the seconds of a stage's jobs: one, or one for each slide, case or epoch.

    None is the time of a job that was killed, or of which the outputs were linked.
    """
    folder = run / "benchmarks"
    durations: dict[Path, float | None] = {}
    for file in (folder / f"{stage}.tsv", *folder.glob(f"{stage}/*.tsv")):
        if not file.exists():
            continue
        job = file.relative_to(folder).with_suffix("")
        try:
            (row,) = read_table(file, ("s",))
            durations[job] = float(row["s"])
        except (UserError, ValueError):
            durations[job] = None
    if durations:
        return durations
    return {Path(stage, job): record.seconds for job, record in records_of(run, stage).items()}


def _output_bytes(path: Path) -> int:
    """Return the total size of the outputs in a record; 0 if there is no record."""
    try:
        record = read_output_record(path)
    except UserError:
        record = None
    return sum(output.bytes for output in record.outputs.values()) if record else 0
