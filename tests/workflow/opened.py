"""Which files the jobs of a run opened, and which folders they listed, without declaring them.

What a library reads in C (OpenSlide, TensorFlow, pyarrow) is seen as well as what Python reads.
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

from gigatile.files import sha256_of
from gigatile.provenance.code import Plugins, reachable_files

# Files that Snakemake does not compare by their content, as rules declare them `ancient` or reach
# them through a table: each must be named, by its SHA-256, in a file that the rule declares and
# that is compared, or in one that is so reached.
SHARDS = ("shards/*.tfrecord", "shards/*.index.npy")
MODEL = ("model/model.keras",)
SLIDES = ("tiles/*.tfrecord", "tiles/*.json", "tiles/*.jpg", "tiles/*.parquet")
CASES = ("volumes/*.tfrecord", "volumes/*.json")
REACHED: dict[str, Sequence[str]] = {
    "write_shards": ("tiles/*.tfrecord", "volumes/*.tfrecord"),
    "train": SHARDS,
    "validate": (*SHARDS, "segments/*.keras"),
    "choose_model": ("segments/*.keras",),
    "segment": (*MODEL, "volumes/*.tfrecord"),
    "segment_new": (*MODEL, "predictions/volumes/*.tfrecord"),
    "evaluate": (*MODEL, "tiles/*.tfrecord", "evaluation/segmentations/*.nii.gz"),
    "report": (
        *MODEL,
        *SHARDS,
        *SLIDES,
        *CASES,
        "evaluation/*.parquet",
        "evaluation/segmentations/*.nii.gz",
    ),
    "predict": (*MODEL, "predictions/tiles/*.tfrecord"),
    "prediction_pages": (
        *MODEL,
        *(f"predictions/{name}" for name in (*SLIDES, *CASES)),
        *("tiles/*.tfrecord", "volumes/*.tfrecord"),
        "predictions/tiles.parquet",
        "predictions/segmentations/*.nii.gz",
    ),
}
# Files that contain a digest of themselves and the key of what they belong to, such as the state of
# an earlier segment: the command refuses any other content (gigatile.training.checkpoints).
CHECKED = {"train": "segments/*.npz"}
# Folders whose entries may differ without any effect on what a rule makes, and why.
LISTED = {
    "tile": ("tiles", "removes temporary files of a job that was killed"),
    "tile_new": ("predictions/tiles", "removes temporary files of a job that was killed"),
    "prepare": ("volumes", "removes temporary files of a job that was killed"),
    "prepare_new": ("predictions/volumes", "removes temporary files of a job that was killed"),
    "write_shards": ("shards", "removes shards of an earlier division"),
    "train": ("segments", "resumes from a state only if its key is that of this training"),
}
# Files of the sheet: a parameter of the rule holds their fingerprints, or the table of cases does.
FINGERPRINTED = {"tile", "tile_new", "prepare", "prepare_new", "evaluate"}
# What Snakemake compares by its content; of the sheet a parameter has the SHA-256, or the rows.
COMPARED = (".json", ".tsv")

# Their code decides where a command runs, and what is noted of it; it has no say in what is made.
AROUND = ("scripts/launch.py", "scripts/record_outputs.py")

STARTED = re.compile(r"^(?:clone3?|fork|vfork)\(.*\s= (\d+)$")
SHELL = re.compile(r'^execve\("[^"]*", \["[^"]*bash", "-c", "(.*)"\], .*\s= 0$')
# The new name of a file, or a folder that was made.
NAMED = re.compile(r'^(?:rename(?:at2?)?\(.*, |mkdir(?:at)?\((?:.*, )?)"(.*)"(?:, \w+)?\)\s+= 0$')
OPENED = re.compile(r"^(?:open|openat|openat2|creat)\((.*)\)\s+= \d+<(.*)>$")


@dataclass
class Job:
    """A job that ran: its rule, what the rule declared, and the files that its processes opened.

    Attributes:
        inputs: as Snakemake noted them.
        command: the file in `scripts` that it calls.
        written, read: paths from the project's folder; what a job creates it may read.
        listed: folders whose entries it read.
    """

    rule: str
    inputs: list[str]
    command: str
    written: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    listed: set[str] = field(default_factory=set)

    def made(self, path: str) -> bool:
        """Return whether it has created a file, or a folder around it."""
        return any(part in self.written for part in (path, *map(str, Path(path).parents)))


def check_declared(clone: Clone, *rules: str) -> None:
    """Assert that jobs of these rules ran while they were traced, and that none read in secret."""
    if not clone.trace.is_dir():
        pytest.skip("strace is not installed")
    jobs = jobs_of(clone.folder, clone.trace)
    assert {job.rule for job in jobs} == set(rules)
    assert all(job.read for job in jobs), "what they opened was not seen"
    faults = {
        f"{job.rule} reads {path}: {fault}"
        for job in jobs
        for path, fault in undeclared(clone.folder, job).items()
    }
    assert not faults, "\n".join(sorted(faults))


def undeclared(project: Path, job: Job) -> dict[str, str]:
    """Return the files that a job read and whose changes its rule would not see, and why."""
    declared = {
        path
        for path in job.inputs
        if path.endswith(COMPARED)
        or (job.rule in FINGERPRINTED and not path.startswith("results/"))
    }
    faults = {
        path: "no input of its rule"
        for path in job.read - declared - _code(project, job.command)
        if not job.made(path) and not fnmatch(path, f"results/*/{CHECKED.get(job.rule)}")
    }
    faults |= {
        f"{path}/": "a listing of a folder, which no rule can declare"
        for path in job.listed - _code_folders(project, job.command)
        if not job.made(path) and not fnmatch(path, f"results/*/{LISTED.get(job.rule, [''])[0]}")
    }
    patterns = [f"results/*/{pattern}" for pattern in REACHED.get(job.rule, ())]
    naming = [path for path in declared if path.endswith(COMPARED)]
    while naming:
        sums = {one for path in naming for one in _sums_in(project / path)}
        reached = [path for path in faults if any(fnmatch(path, one) for one in patterns)]
        faults |= dict.fromkeys(reached, "no file that its rule declares names its SHA-256")
        naming = [path for path in reached if _sum_of(project / path) in sums]
        for path in naming:
            del faults[path]
        naming = [path for path in naming if path.endswith(COMPARED)]
    return faults


def jobs_of(project: Path, trace: Path) -> list[Job]:
    """Return the jobs of a run that was traced into a folder, and what they opened."""
    noted = _noted(project)
    processes = {int(path.suffix[1:]): _Process(path, project) for path in trace.iterdir()}
    found = []
    for process in processes.values():
        line = next((line for line in noted if process.shell.endswith(line)), None)
        if line is None:
            continue
        job = Job(*noted[line])
        for one in _and_all_that_it_started(process, processes):
            job.written |= one.written
            job.read |= one.read
            job.listed |= one.listed
        found.append(job)
    return found


def _noted(project: Path) -> dict[str, tuple[str, list[str], str]]:
    """Return the rule, inputs and command of jobs, by the lines that Snakemake had a shell run."""
    found = {}
    for path in (project / "results/.snakemake-metadata").rglob("*"):
        if path.is_file():
            noted: Mapping = json.loads(path.read_text())
            line = noted["shellcmd"].strip()
            commands = [one for one in re.findall(r"scripts/\w+\.py", line) if one not in AROUND]
            found[line] = (noted["rule"], noted["input"], commands[0])
    return found


class _Process:
    """What one process did, as its file of the trace has it."""

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
        if found := OPENED.match(line):
            path = Path(_unescaped(found[2]))
            if not path.is_relative_to(project):
                return
            name = _source(str(path.relative_to(project)))
            if "O_DIRECTORY" in found[1]:
                self.listed.add(name)
            elif re.search(r"O_(WRONLY|RDWR|CREAT|TRUNC)", found[1]):
                self.written.add(name)
            else:
                self.read.add(name)
        elif found := NAMED.match(line):
            path = project / _unescaped(found[1])  # of a job, which runs there
            if path.is_relative_to(project):
                self.written.add(str(path.relative_to(project)))
        elif found := STARTED.match(line):
            self.started.append(int(found[1]))
        elif found := SHELL.match(line):
            self.shell = _unescaped(found[1]).strip()


def _and_all_that_it_started(
    process: _Process, processes: Mapping[int, _Process]
) -> Iterator[_Process]:
    yield process
    for number in process.started:
        if number in processes:
            yield from _and_all_that_it_started(processes[number], processes)


def _source(name: str) -> str:
    """Return the name of the source of compiled Python, and any other as it is."""
    return re.sub(r"__pycache__/(\w+)\.cpython-\d+\.pyc(\.\d+)?$", r"\1.py", name)


def _unescaped(text: str) -> str:
    return codecs.escape_decode(text.encode("utf-8", "surrogateescape"))[0].decode()


@cache
def _code(project: Path, command: str) -> frozenset[str]:
    """Return the files that decide the checksum of a command's code, and those that may."""
    found = [
        path
        for name in (command, *AROUND)
        for plugins in (
            Plugins("tile_classification", "small_cnn"),
            Plugins("volume_segmentation", "small_unet"),
        )
        for path in reachable_files(project / name, plugins)
    ]
    return frozenset(str(path.relative_to(project)) for path in found)


def _code_folders(project: Path, command: str) -> set[str]:
    """Return the folders that Python lists when it imports the code of a command."""
    return {str(parent) for path in _code(project, command) for parent in Path(path).parents}


@cache
def _sum_of(path: Path) -> str:
    return sha256_of(path) if path.is_file() else ""


@cache
def _sums_in(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"\b[0-9a-f]{64}\b", path.read_text()))
