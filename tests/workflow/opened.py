"""Find files that the jobs of a run opened, and folders that they listed, without declaring them.

strace shows what C libraries read (OpenSlide, TensorFlow, pyarrow) as well as what Python reads.
"""

import codecs
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
from clones import Clone

from gigatile.files import read_json, sha256_of
from gigatile.provenance.code import Plugins, reachable_files

# Files that Snakemake does not compare by content, because rules declare them `ancient` or find
# them in a table. The SHA-256 of each must be listed in a file that the rule declares and Snakemake
# compares, or in another file that is reached in this way.
SHARDS = ("shards/*.tfrecord", "shards/*.index.npy")
MODEL = ("model/model.keras",)
SLIDES = ("tiles/*.tfrecord", "tiles/*.json", "tiles/*.jpg", "tiles/*.parquet")
EMBEDDED = ("embeddings/*.tfrecord", "embeddings/*.json")
CASES = ("volumes/*.tfrecord", "volumes/*.json")
# Records and states of several images. The table of images has the checksums of each.
PARTS = ("images/*.tfrecord", "images/*.json")
REACHED: dict[str, Sequence[str]] = {
    "embed": ("tiles/*.tfrecord",),
    "embed_new": ("predictions/tiles/*.tfrecord",),
    "baselines": ("embeddings/*.json", "embeddings/*.h5"),
    "write_shards": ("tiles/*.tfrecord", "embeddings/*.tfrecord", "volumes/*.tfrecord", *PARTS),
    "train": SHARDS,
    "validate": (*SHARDS, "segments/*.keras"),
    "choose_model": ("segments/*.keras",),
    "segment": (*MODEL, "volumes/*.tfrecord"),
    "segment_new": (*MODEL, "predictions/volumes/*.tfrecord"),
    "score": (*MODEL, "tiles/*.tfrecord"),
    "score_slides": (*MODEL, "embeddings/*.tfrecord"),
    "score_valid_slides": (*MODEL, "embeddings/*.tfrecord"),
    "score_new_slides": (*MODEL, "predictions/embeddings/*.tfrecord"),
    # The states of the segmentations have their checksums.
    "external": ("predictions/segmentations/*.nii.gz", *(f"predictions/{name}" for name in PARTS)),
    "score_valid": (*MODEL, "tiles/*.tfrecord"),
    "evaluate_valid": (*MODEL, "tiles/*.tfrecord"),
    "score_new": (*MODEL, "predictions/tiles/*.tfrecord"),
    "evaluate": (*MODEL, "tiles/*.tfrecord", "evaluation/segmentations/*.nii.gz", *PARTS),
    "report": (
        *MODEL,
        *SHARDS,
        *SLIDES,
        *EMBEDDED,
        *CASES,
        *PARTS,
        "evaluation/*.parquet",
        "evaluation/segmentations/*.nii.gz",
    ),
    "predict": (
        *MODEL,
        "predictions/tiles/*.tfrecord",
        *(f"predictions/{name}" for name in PARTS),
    ),
    "prediction_pages": (
        *MODEL,
        *(f"predictions/{name}" for name in (*SLIDES, *EMBEDDED, *CASES, *PARTS)),
        *("tiles/*.tfrecord", "volumes/*.tfrecord", *EMBEDDED, *PARTS),
        *("tiles/*.json", "volumes/*.json"),
        "predictions/tiles.parquet",
        "predictions/segmentations/*.nii.gz",
        "predictions/maps/*.parquet",
    ),
    "detect_slide": MODEL,
    "slide_pages": (
        *MODEL,
        *PARTS,
        *(f"predictions/slides/*.{kind}" for kind in ("parquet", "geojson.gz", "jpg")),
    ),
}
# Files that contain a digest of themselves and a key, such as the state of an earlier segment: the
# command refuses any other content (gigatile.training.checkpoints).
CHECKED = {"train": "segments/*.npz"}
# Records and logs of jobs, which these rules move into one file each.
PACKED = ("provenance/*/*.json", "logs/*/*.log", "provenance/*.jsonl", "logs/*.log")
PACKING = ("collect", "collect_new")
# Folders whose entries have no effect on the outputs of a rule, and why.
LISTED = {
    "tile": ("tiles", "removes temporary files of a killed job"),
    "tile_new": ("predictions/tiles", "removes temporary files of a killed job"),
    "embed": ("embeddings", "removes temporary files of a killed job"),
    "embed_new": ("predictions/embeddings", "removes temporary files of a killed job"),
    "prepare": ("[iv]*s", "removes temporary files of a killed job"),
    "prepare_new": ("predictions/[iv]*s", "removes temporary files of a killed job"),
    "detect_slide": ("predictions/slides", "removes temporary files of a killed job"),
    "write_shards": ("shards", "removes shards of an earlier run"),
    "train": ("segments", "resumes from a state only if its key is that of this training"),
}
# Rules that read files of the sheet, or the encoder. A parameter, or the table of cases, has their
# fingerprints or checksums.
FINGERPRINTED = {
    *("tile", "tile_new", "prepare", "prepare_new", "evaluate", "detect_slide", "external"),
    *("embed", "embed_new"),
}
# Types of files that Snakemake compares by content. For the sheet, a parameter has the SHA-256 or
# the rows.
COMPARED = (".json", ".tsv")

# Commands that start another one or record its outputs. They do not change the outputs.
AROUND = ("scripts/launch.py", "scripts/record_outputs.py", "scripts/run_recorded.py")

STARTED = re.compile(r"^(?:clone3?|fork|vfork)\(.*\s= (\d+)$")
SHELL = re.compile(r'^execve\("[^"]*", \["[^"]*bash", "-c", "(.*)"\], .*\s= 0$')
# The new name of a renamed file, or a new folder.
NAMED = re.compile(r'^(?:rename(?:at2?)?\(.*, |mkdir(?:at)?\((?:.*, )?)"(.*)"(?:, \w+)?\)\s+= 0$')
OPENED = re.compile(r"^(?:open|openat|openat2|creat)\((.*)\)\s+= \d+<(.*)>$")


@dataclass
class Job:
    """A job that ran: its rule, the declared inputs, and the files that its processes opened.

    Attributes:
        inputs: from Snakemake's metadata.
        command: the file in `scripts` that it calls.
        written, read: paths relative to the project. A job may read what it creates.
        listed: folders whose entries it read.
    """

    rule: str
    inputs: list[str]
    command: str
    written: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    listed: set[str] = field(default_factory=set)

    def created(self, path: str) -> bool:
        """Return whether the job created a file, or a folder that contains it."""
        return any(part in self.written for part in (path, *map(str, Path(path).parents)))


def check_declared(clone: Clone, *rules: str) -> None:
    """Assert that jobs of these rules were traced, and that none read undeclared files."""
    if not clone.trace.is_dir():
        pytest.skip("strace is not installed")
    jobs = jobs_of(clone.folder, clone.trace)
    assert {job.rule for job in jobs} == set(rules)
    assert all(job.read for job in jobs), "strace did not record the files that they opened"
    faults = {
        f"{job.rule} reads {path}: {fault}"
        for job in jobs
        for path, fault in undeclared(clone.folder, job).items()
    }
    assert not faults, "\n".join(sorted(faults))


def undeclared(project: Path, job: Job) -> dict[str, str]:
    """Return the files whose changes would not run a job again although it reads them, and why."""
    declared = {
        path
        for path in job.inputs
        if path.endswith(COMPARED)
        or (job.rule in FINGERPRINTED and not path.startswith("results/"))
    }
    faults = {
        path: "no input of its rule"
        for path in job.read - declared - _code(project, job.command)
        if not job.created(path)
        and not fnmatch(path, f"results/*/{CHECKED.get(job.rule)}")
        and not (job.rule in PACKING and any(fnmatch(path, f"results/*/{name}") for name in PACKED))
    }
    faults |= {
        f"{path}/": "a listing of a folder, which no rule can declare"
        for path in job.listed - _code_folders(project, job.command)
        if not job.created(path) and not fnmatch(path, f"results/*/{LISTED.get(job.rule, [''])[0]}")
    }
    patterns = [f"results/*/{pattern}" for pattern in REACHED.get(job.rule, ())]
    naming = [path for path in declared if path.endswith(COMPARED)]
    while naming:
        sums = {checksum for path in naming for checksum in _sums_in(project / path)}
        reached = [path for path in faults if any(fnmatch(path, name) for name in patterns)]
        faults |= dict.fromkeys(reached, "no declared file lists its SHA-256")
        naming = [
            path
            for path in reached
            if _sum_of(project / path) in sums or _has_listed_images(project / path, sums)
        ]
        for path in naming:
            del faults[path]
        naming = [path for path in naming if path.endswith(COMPARED)]
    return faults


def _has_listed_images(path: Path, sums: set[str]) -> bool:
    """Return whether a file has the records or states of images with these checksums of records."""
    state = path.with_suffix(".json")
    if not any(fnmatch(str(path), f"*/{pattern}") for pattern in PARTS) or not state.exists():
        return False
    images = [image for image in read_json(state)["images"] if image["state"] != "failed"]
    return bool(images) and all(image["records"]["sha256"] in sums for image in images)


def jobs_of(project: Path, trace: Path) -> list[Job]:
    """Return the jobs of a traced run, and the files that they opened."""
    recorded = _recorded_jobs(project)
    processes = {int(path.suffix[1:]): _Process(path, project) for path in trace.iterdir()}
    jobs = []
    for process in processes.values():
        line = next((line for line in recorded if process.shell.endswith(line)), None)
        if line is None:
            continue
        job = Job(*recorded[line])
        for member in _with_descendants(process, processes):
            job.written |= member.written
            job.read |= member.read
            job.listed |= member.listed
        jobs.append(job)
    return jobs


def _recorded_jobs(project: Path) -> dict[str, tuple[str, list[str], str]]:
    """Return the rule, inputs and command of jobs by shell command, from Snakemake's metadata."""
    jobs = {}
    for path in (project / "results/.snakemake-metadata").rglob("*"):
        if path.is_file():
            record: Mapping = json.loads(path.read_text())
            line = record["shellcmd"].strip()
            scripts = [f"scripts/{name}" for name in re.findall(r"\$SCRIPTS/(\w+\.py)", line)]
            command = next(name for name in scripts if name not in AROUND)
            jobs[line] = (record["rule"], record["input"], command)
    return jobs


class _Process:
    """The files of a process, from its trace."""

    def __init__(self, path: Path, project: Path) -> None:
        self.shell = ""
        self.started: list[int] = []
        self.written: set[str] = set()
        self.read: set[str] = set()
        self.listed: set[str] = set()
        with path.open(errors="surrogateescape") as lines:
            for line in lines:
                self._take(line.rstrip("\n"), project)

    def _take(self, line: str, project: Path) -> None:
        if match := OPENED.match(line):
            path = Path(_unescaped(match[2]))
            if not path.is_relative_to(project):
                return
            name = _source(str(path.relative_to(project)))
            if "O_DIRECTORY" in match[1]:
                self.listed.add(name)
            elif re.search(r"O_(WRONLY|RDWR|CREAT|TRUNC)", match[1]):
                self.written.add(name)
            else:
                self.read.add(name)
        elif match := NAMED.match(line):
            path = project / _unescaped(match[1])  # of a job, which runs there
            if path.is_relative_to(project):
                self.written.add(str(path.relative_to(project)))
        elif match := STARTED.match(line):
            self.started.append(int(match[1]))
        elif match := SHELL.match(line):
            self.shell = _unescaped(match[1]).strip()


def _with_descendants(process: _Process, processes: Mapping[int, _Process]) -> Iterator[_Process]:
    yield process
    for number in process.started:
        if number in processes:
            yield from _with_descendants(processes[number], processes)


def _source(name: str) -> str:
    """Return the source file of a compiled Python file, and any other name unchanged."""
    return re.sub(r"__pycache__/(\w+)\.cpython-\d+\.pyc(\.\d+)?$", r"\1.py", name)


def _unescaped(text: str) -> str:
    return codecs.escape_decode(text.encode("utf-8", "surrogateescape"))[0].decode()


@cache
def _code(project: Path, command: str) -> frozenset[str]:
    """Return the files in the code hash of a command, for any task."""
    files = [
        path
        for name in (command, *AROUND)
        for plugins in (
            Plugins("tile_classification", "small_cnn"),
            Plugins("slide_classification", "whole_small"),
            Plugins("slide_embedding", "abmil"),
            Plugins("slide_outcome", "abmil"),
            Plugins("whole_slide_outcome", "whole_small"),
            Plugins("volume_segmentation", "small_unet"),
            Plugins("instance_segmentation", "mask_small"),
        )
        for path in reachable_files(project / name, plugins)
    ]
    return frozenset(str(path.relative_to(project)) for path in files)


def _code_folders(project: Path, command: str) -> set[str]:
    """Return the folders that Python lists while it imports the code of a command."""
    return {str(parent) for path in _code(project, command) for parent in Path(path).parents}


@cache
def _sum_of(path: Path) -> str:
    return sha256_of(path) if path.is_file() else ""


@cache
def _sums_in(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"\b[0-9a-f]{64}\b", path.read_text()))
