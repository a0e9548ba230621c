"""What a plan will take: hours of cores and GPUs, storage, and the longest chain of jobs.

An estimate. A job takes a start, and a time that grows with the slides or the tiles that it is
about; tiles are counted in megapixels. Of volumes the same is told by cases and megavoxels. How
fast that goes is known from earlier runs where they lasted long enough to tell, else it is a stated
default.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gigatile.errors import UserError
from gigatile.files import read_json
from gigatile.making.made import FOLDER, read_note
from gigatile.settings.split import SPLITS
from gigatile.tables import read_table


@dataclass(frozen=True)
class Stage:
    """What is assumed of a stage.

    Attributes:
        after: the stages whose files it reads.
        start: seconds until a job of it works.
        slide: seconds for each slide, or case.
        megapixel: seconds of one core for each megapixel of tiles, or megavoxel of a prepared case.
        model: it trains a model or asks it; `MODELS` has the seconds, and this is their share.
        left: bytes that it leaves of each megapixel.
    """

    after: tuple[str, ...] = ()
    start: float = 1
    slide: float = 0
    megapixel: float = 0
    model: float = 0
    left: float = 0


# For a core of a server. A tile of 224 px has 0.05 megapixels and about 15 kB.
OF_SLIDES = {
    "demo_slide": Stage(start=2),
    "split_patients": Stage(slide=0.001),
    "tile": Stage(("demo_slide",), megapixel=0.012, left=300_000),
    "collect": Stage(("tile",), slide=0.002),
    "collect_training": Stage(("tile",), slide=0.002),
    "write_shards": Stage(("collect_training",), start=2, megapixel=0.0005, left=300_000),
    "train": Stage(("write_shards",), start=10, model=1),
    "validate": Stage(("write_shards", "train"), start=8, model=0.3),
    "choose_model": Stage(("train", "validate")),
    "evaluate": Stage(("collect", "choose_model"), start=8, model=0.3),
    "report": Stage(
        ("split_patients", "collect", "write_shards", "choose_model", "evaluate"),
        start=3,
        slide=1,
    ),
    "tile_new": Stage(megapixel=0.012, left=300_000),
    "collect_new": Stage(("tile_new",), slide=0.002),
    "predict": Stage(("collect_new", "choose_model"), start=8, model=0.3),
    "prediction_pages": Stage(
        ("collect", "collect_new", "choose_model", "predict"), start=3, slide=1
    ),
}
# A voxel of four channels and labels has 9 bytes. Windows that overlap by half go over each voxel
# eight times.
OF_CASES = {
    "demo_case": Stage(start=1),
    "split_patients": Stage(slide=0.001),
    "prepare": Stage(("demo_case",), start=1, megapixel=1.5, left=9_000_000),
    "collect": Stage(("prepare",), slide=0.002),
    "collect_training": Stage(("prepare",), slide=0.002),
    "write_shards": Stage(("collect_training",), start=2, megapixel=0.01, left=9_000_000),
    "train": Stage(("write_shards",), start=10, model=1),
    "validate": Stage(("write_shards", "train"), start=8, model=2.4),
    "choose_model": Stage(("train", "validate")),
    "segment": Stage(("prepare", "choose_model"), start=8, model=2.4, left=10_000),
    "evaluate": Stage(("collect", "choose_model", "segment"), start=2, megapixel=0.3),
    "report": Stage(
        ("split_patients", "collect", "write_shards", "choose_model", "segment", "evaluate"),
        start=3,
        slide=1,
    ),
    "prepare_new": Stage(start=1, megapixel=1.5, left=9_000_000),
    "collect_new": Stage(("prepare_new",), slide=0.002),
    "segment_new": Stage(("prepare_new", "choose_model"), start=8, model=2.4, left=10_000),
    "prediction_pages": Stage(
        ("collect", "collect_new", "choose_model", "segment_new"), start=3, slide=1
    ),
}
STAGES = {"slide": OF_SLIDES, "case": OF_CASES}
# Seconds to train on a megapixel, or a megavoxel, of a core and of a GPU.
MODELS = {
    "small_cnn": (0.2, 0.02),
    "resnet50": (5.0, 0.05),
    "small_unet": (1.1, 0.01),
    "unet": (17.0, 0.05),
}
# Megapixels from which on tiles outweigh what else lies beside them.
ENOUGH = 100
# Tiles of a slide before any is cut; megavoxels of a case before any is prepared, a head at 1 mm.
TILES_PER_SLIDE = 10_000
MEGAVOXELS = 3.5


@dataclass(frozen=True)
class Cohort:
    """What jobs are about.

    Attributes:
        slides: of `train`, `valid` and `test`, and `new` ones; or cases.
        megapixels: of the tiles of a slide, in the mean; or megavoxels of a case.
        segments: of the training, the epochs at the end of each.
        model: the model's name.
        ranks: of the training.
        unit: `slide` or `case`.
        shown: what an epoch shows of each, in the same measure; None: all of it once.
    """

    slides: Mapping[str, int]
    megapixels: float
    segments: Sequence[int]
    model: str
    ranks: int
    unit: str = "slide"
    shown: float | None = None

    def megapixels_of(self, stage: str) -> float:
        """Return what a job of a stage goes through of each slide or case, in megapixels."""
        return self.shown if stage == "train" and self.shown is not None else self.megapixels

    def slides_of(self, stage: str, epoch: int = 0) -> int:
        """Return the slides that a job is about; of training, in all epochs of its segment."""
        count = self.slides
        match stage:
            case "demo_slide" | "tile" | "tile_new":
                return 1
            case "demo_case" | "prepare" | "prepare_new" | "segment" | "segment_new":
                return 1
            case "collect_training" | "write_shards":
                return count["train"] + count["valid"]
            case "train":
                before = [end for end in self.segments if end < epoch]
                return count["train"] * (epoch - max(before, default=0))
            case "validate":
                return count["valid"]
            case "evaluate" | "report":
                return count["test"]
            case "collect_new" | "predict" | "prediction_pages":
                return count["new"]
            case "choose_model":
                return 0
        return count["train"] + count["valid"] + count["test"]


@dataclass(frozen=True)
class Planned:
    """A job that is to run, the cores and GPUs that it occupies, and of a segment its epoch."""

    stage: str
    cores: int = 1
    gpus: int = 0
    epoch: int = 0


@dataclass(frozen=True)
class Rate:
    """What earlier runs took of a stage.

    Attributes:
        megapixel: seconds of a job for each; of training, seconds of a rank.
        left: bytes for each.
    """

    megapixel: float | None = None
    left: float | None = None


@dataclass(frozen=True)
class Cost:
    """What the jobs of a stage will take.

    Attributes:
        jobs: how many.
        seconds: of the longest; of training, whose jobs wait for each other, of all.
        core_hours, gpu_hours, left: of all, and the bytes that they leave.
        measured: the speed is of earlier runs.
    """

    jobs: int
    seconds: float
    core_hours: float
    gpu_hours: float
    left: float
    measured: bool


def seconds_of(job: Planned, cohort: Cohort, rate: Rate = Rate()) -> float:
    """Return how long a job will take."""
    stage = STAGES[cohort.unit][job.stage]
    slides = cohort.slides_of(job.stage, job.epoch)
    megapixels = slides * cohort.megapixels_of(job.stage)
    workers = cohort.ranks if job.stage == "train" else 1
    if rate.megapixel is not None:
        each = rate.megapixel
    elif stage.model:
        on_core, on_gpu = MODELS[cohort.model]
        each = stage.model * (on_gpu if job.gpus else on_core * workers / job.cores)
    else:
        each = stage.megapixel / job.cores
    return stage.start + slides * stage.slide + megapixels * each / workers


def costs(jobs: Sequence[Planned], cohort: Cohort, rates: Mapping[str, Rate]) -> dict[str, Cost]:
    """Return what the jobs of each stage will take, in the order of the stages."""
    by_stage: dict[str, list[Planned]] = defaultdict(list)
    for job in jobs:
        by_stage[job.stage].append(job)
    found = {}
    for name, stage in STAGES[cohort.unit].items():
        if name not in by_stage:
            continue
        rate = rates.get(name, Rate())
        times = [seconds_of(job, cohort, rate) for job in by_stage[name]]
        pairs = list(zip(by_stage[name], times, strict=True))
        left = stage.left if rate.left is None else rate.left
        about = sum(cohort.slides_of(name, job.epoch) for job in by_stage[name])
        found[name] = Cost(
            jobs=len(times),
            seconds=sum(times) if name == "train" else max(times),
            core_hours=sum(job.cores * seconds for job, seconds in pairs) / 3600,
            gpu_hours=sum(job.gpus * seconds for job, seconds in pairs) / 3600,
            left=left * about * cohort.megapixels,
            measured=rate.megapixel is not None,
        )
    return found


def longest_chain(found: Mapping[str, Cost], unit: str = "slide") -> tuple[float, list[str]]:
    """Return the seconds of the longest chain of jobs, and its stages: what no machine shortens."""
    chains: dict[str, tuple[float, list[str]]] = {}
    for name, stage in STAGES[unit].items():
        before = max((chains[other] for other in stage.after), default=(0.0, []))
        own = found.get(name)
        chains[name] = (before[0] + own.seconds, [*before[1], name]) if own else before
    return max(chains.values())


# --- Earlier runs


def measured(results: Path, model: str, unit: str = "slide") -> dict[str, Rate]:
    """Return what earlier runs took, by stage.

    A stage's time counts where it worked for at least as long as it took to start. Where a model is
    trained or asked, it has to be the same model.

    Args:
        results: the folder of all runs.
        model: the model's name.
        unit: runs of slides count, or of cases.
    """
    seconds: dict[str, float] = defaultdict(float)
    starts: dict[str, float] = defaultdict(float)
    megapixels: dict[str, float] = defaultdict(float)
    left: dict[str, float] = defaultdict(float)
    for run in sorted(results.glob("*/")):
        cohort = _cohort_of(run)
        if cohort is None or cohort.unit != unit:
            continue
        for name, stage in STAGES[cohort.unit].items():
            if not (stage.megapixel or stage.model):
                continue
            if stage.model and cohort.model != model:
                continue
            for file in _files_of(run / "benchmarks", name, ".tsv"):
                epoch = int(file.stem) if file.stem.isdecimal() and stage.model else 0
                work = cohort.slides_of(name, epoch) * cohort.megapixels_of(name)
                workers = cohort.ranks if name == "train" else 1
                try:
                    (row,) = read_table(file, ("s",))
                    took = float(row["s"])
                except (UserError, ValueError):
                    continue  # of a job that was killed, perhaps
                seconds[name] += (took - stage.start) * workers
                starts[name] += stage.start * workers
                megapixels[name] += work
                if stage.left:
                    left[name] += _left(
                        run / FOLDER / file.relative_to(run / "benchmarks").with_suffix(".json")
                    )
    return {
        name: Rate(
            seconds[name] / work if seconds[name] >= starts[name] else None,
            left[name] / work if left[name] and work >= ENOUGH else None,
        )
        for name, work in megapixels.items()
        if work
    }


def megapixels_of(run: Path) -> float | None:
    """Return the mean megapixels of a slide's tiles in a run; None before it came to its end."""
    cohort = _cohort_of(run)
    return None if cohort is None else cohort.megapixels


def _cohort_of(run: Path) -> Cohort | None:
    """Return what an earlier run was about; None where it did not get so far that it tells."""
    try:
        settings = read_json(run / "model/settings.json")
        unit = "case" if "volumes" in settings else "slide"
        table, column = ("cases.tsv", "megavoxels") if unit == "case" else ("tiles.tsv", "tiles")
        rows = read_table(run / table, ("split", column))
        each, shown = 1.0, None
        if unit == "slide":
            each = settings["tiles"]["size"] ** 2 / 1e6
        else:
            shown = settings["patches"]["per_case"] * math.prod(settings["patches"]["size"]) / 1e6
        megapixels = sum(float(row[column]) for row in rows) * each
        model, ranks = settings["train"]["model"], settings["train"]["ranks"]
        new = run / "predictions" / table
        slides = {split: sum(row["split"] == split for row in rows) for split in SPLITS}
        slides["new"] = len(read_table(new)) if new.is_file() else 0
    except (UserError, ValueError, LookupError, TypeError):
        return None
    if not rows:
        return None
    segments = sorted(int(path.stem) for path in (run / "segments").glob("????.json"))
    return Cohort(slides, megapixels / len(rows), segments, model, ranks, unit, shown)


def _files_of(folder: Path, stage: str, suffix: str) -> list[Path]:
    """Return the files of a stage's jobs: one, or one for each slide or epoch."""
    return [*folder.glob(f"{stage}{suffix}"), *folder.glob(f"{stage}/*{suffix}")]


def _left(note: Path) -> int:
    try:
        noted = read_note(note)
    except UserError:
        noted = None
    return sum(output.bytes for output in noted.outputs.values()) if noted else 0
