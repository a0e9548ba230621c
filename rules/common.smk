# Functions that several rules use: settings, code and notes as parameters, files, shapes of jobs.
import inspect
import json
import os
import shlex
from functools import cache
from pathlib import Path

from snakemake.common import overwrite_function_params
from snakemake.exceptions import WorkflowError

from gigatile.cohort.sheet import SAFE_ID
from gigatile.cohort.splits import checksum_of, rows_of_splits
from gigatile.errors import UserError
from gigatile.files import sha256_of
from gigatile.making.code import Plugins, code_of
from gigatile.making.made import content_of, fault_of, note_of, stall_of
from gigatile.settings.section import canonical
from gigatile.settings.split import SPLITS


wildcard_constraints:
    slide=SAFE_ID,
    case=SAFE_ID,
    epoch=r"\d{4}",


def section(name):
    """Return the part of the settings that a rule reads, as text that is equal if they are."""
    return canonical(getattr(SETTINGS, name))


def asked_often(function):
    """Have Snakemake know what a function takes; it finds out anew for each job otherwise.

    With a job per slide that is a sixth of the time of a plan.
    """
    overwrite_function_params(function, inspect.signature(function).parameters)
    return function


def code(command):
    """Return what tells a rule that the code of its command has changed; see docs/reruns.md."""
    path = Path(workflow.basedir) / "scripts" / f"{command}.py"
    # When a job is planned and not before: most of those that Snakemake starts plan one alone.
    plugins = Plugins(SETTINGS.task, SETTINGS.train.model)
    return asked_often(lambda wildcards: _code(path, plugins))


@cache
def _code(path, plugins):
    try:
        return code_of(path, plugins)
    except UserError as error:
        raise WorkflowError(str(error)) from None


def note(*job):
    """Return where a rule notes what it has made; of several jobs, told by a wildcard, each its own."""
    return str(note_of(Path(RUN), *job))


def planning():
    """Return whether it is being found out which jobs are to run."""
    return workflow.is_main_process and workflow.scheduler is None


def intact(rule):
    """Return what tells a rule that something which it has made is gone or damaged."""

    @asked_often
    def fault(wildcards):
        if planning():
            return fault_of(note_of(Path(RUN), rule, *wildcards))
        # It is about to be made whole. Snakemake keeps the parameters of the plan and would note those.
        if workflow.is_main_process:
            workflow.persistence._params.cache_clear()
        return ""

    return fault


def content(rule, samples, states):
    """Return a parameter that changes with the content of a slide or case, whatever its time is.

    It also changes if an output is missing or damaged, or if the slide stalled and the limit is
    higher now; the note has all of this.
    """
    faulty = intact(rule)
    limit = getattr(SETTINGS, TASK.preparation).stall_minutes

    @asked_often
    def fingerprint(wildcards):
        if fault := faulty(wildcards):
            return fault
        (one,) = wildcards
        path = note_of(Path(RUN), rule, one)
        if planning():
            if stalled := stall_of(path, limit):
                return stalled
            if not path.exists() and not os.path.exists(f"{states}/{one}.json"):
                return ""  # it is to be done whatever its file holds, which is not read for that
        elif workflow.dryrun or not workflow.is_main_process:
            return ""  # of a plan that is only printed, or of one job in a process of its own
        return content_of(samples[one].files, path, executor() is not None)

    return fingerprint


def members_of(*splits):
    """Return what the sheet says of some splits; see gigatile/cohort/splits.py."""
    return rows_of_splits(COHORT.values(), SETTINGS.split, *splits)


def states_of(*splits):
    """Return the states that are left of the slides or cases of some splits."""
    return [f"{RUN}/{RECORDS}/{row[UNIT]}.json" for row in members_of(*splits)]


def truths_of(*splits):
    """Return the segmentations of the cases of some splits."""
    cases = [COHORT[row["case"]] for row in members_of(*splits)]
    return [os.path.normpath(case.segmentation) for case in cases]


def rows_of(*splits):
    """Return what tells a rule that the sheet says something else of its slides or cases."""
    return checksum_of(members_of(*splits))


def sheet(path):
    """Return what tells a rule that a sheet says something else; its time may be any."""
    return lambda wildcards: sha256_of(Path(path))


def grow(amount):
    """Return a job's memory or time: it doubles with each attempt."""
    return asked_often(lambda wildcards, attempt: amount * 2 ** (attempt - 1))


def source(samples):
    """Return the files of a job's slide or case; a slide has one."""

    @asked_often
    def files(wildcards):
        (one,) = wildcards
        return [os.path.normpath(path) for path in samples[one].files]

    return files


def sample_options(samples):
    """Return what the sheet says of a slide's file, as options of the command that tiles it.

    Not whose it is: a patient or a label that is corrected there makes no other tiles.
    """

    @asked_often
    def options(wildcards):
        mpp = samples[wildcards.slide].mpp
        return "" if mpp is None else shlex.join(["--mpp", repr(mpp)])

    return options


def case_options(cases):
    """Return the files of a case, as options of the command that prepares it."""

    @asked_often
    def options(wildcards):
        case = cases[wildcards.case]
        given = [f"--image={name}={os.path.normpath(path)}" for name, path in case.images.items()]
        if case.segmentation is not None:
            given.append(f"--segmentation={os.path.normpath(case.segmentation)}")
        return shlex.join(given)

    return options


def of_task(of_tiles, of_volumes):
    """Return one of two, by the task of this run."""
    return of_volumes if VOLUMES else of_tiles


def task_settings(stage):
    """Return the settings of the task that a stage depends on, as JSON."""
    return json.dumps(getattr(TASK, stage)(SETTINGS), sort_keys=True, separators=(",", ":"))


def folder(name="."):
    """Return a folder of the run, for files that a table or a manifest names."""
    return lambda wildcards: os.path.normpath(f"{RUN}/{name}")


# Files that grow with the model or the cohort. Snakemake compares files up to 10 MB by their content and
# larger ones by their time, which a copy changes; so whoever reads one of these has it as `ancient`, beside
# a small file that changes when it does.
LARGE = {".keras", ".npz", ".parquet"}


def small(files):
    """Return those of a rule's files that are compared by their content."""
    return [file for file in files if Path(file).suffix not in LARGE]


def large(*rules_files):
    """Return the other ones of some rules, whose times say nothing."""
    files = [file for files in rules_files for file in files]
    return ancient([file for file in files if Path(file).suffix in LARGE])


def segment_before(suffix):
    """Return a file of the segment before one; of the first, none."""

    def file(wildcards):
        before = [epoch for epoch in SEGMENTS if epoch < wildcards.epoch]
        path = f"{RUN}/segments/{before[-1]}.{suffix}" if before else []
        return ancient(path) if f".{suffix}" in LARGE else path

    return file


def mpi_job(layout):
    """Return what tells the SLURM executor the shape of the job; a laptop does not read it.

    Here and below a layout is a section of the settings with nodes and ranks: shards or train.
    """
    if layout.ranks == 1:
        # No MPI job to the executor, and yet one that starts its own step.
        return {"mpi": ""}
    # It wants tasks_per_node to be more than 1.
    if layout.ranks_per_node == 1:
        return {"mpi": "yes", "nodes": layout.nodes, "tasks": layout.nodes}
    return {"mpi": "yes", "nodes": layout.nodes, "tasks_per_node": layout.ranks_per_node}


def launch_options(layout):
    """Return where the ranks run, as options of the command that launches them."""
    return (
        f"--nodes {layout.nodes} --ranks-per-node {layout.ranks_per_node}"
        f" --cores {layout.cores_per_rank}"
    )


def rank_options(train):
    """Return how a rank runs, as options of its own command."""
    return (
        f"--ranks {train.ranks} --cores {train.cores_per_rank}"
        f" --stall-limit {train.stall_limit} --save-minutes {train.save_minutes}"
    )


def cutting_options(tiles):
    """Return how a slide is cut, as options of the command."""
    copied = " --copy-first" if tiles.copy_first else ""
    return f"--stall-minutes {tiles.stall_minutes:g}{copied}"
