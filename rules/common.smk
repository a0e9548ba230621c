# What every stage shares: the settings, the sheets, and where a run's files lie. No rule is here.
import base64
import contextlib
import gc
import inspect
import io
import itertools
import json
import os
import shlex
import shutil
import sys
from functools import cache
from pathlib import Path

from snakemake.cli import parse_args
from snakemake.common import overwrite_function_params
from snakemake.exceptions import WorkflowError

from gigatile.cohort.cases import read_cases
from gigatile.cohort.copies import check_copies, known_before
from gigatile.cohort.declared import check_declared, datasets_of
from gigatile.cohort.samples import read_samples
from gigatile.cohort.sheet import SAFE_ID, doubts
from gigatile.cohort.splits import assign, check_labels, checksum_of, rows_of_splits
from gigatile.errors import UserError
from gigatile.files import sha256_of
from gigatile.making.code import code_of
from gigatile.making.made import content_of, fault_of, note_of, stall_of
from gigatile.settings.section import canonical
from gigatile.settings.whole import load_settings
from gigatile.settings.split import SPLITS
from gigatile.slurm import await_jobs_of
from repairs.updated_outputs import keep_updated_outputs

keep_updated_outputs()
# Loaded where a profile or an option asks for its executor.
if workflow.is_main_process and "snakemake_executor_plugin_slurm" in sys.modules:
    from repairs.slurm_submission import mend_submission

    mend_submission()

# The commands run with the Python that runs Snakemake, also when its environment was not activated,
# and with the library that lies beside the Snakefile, also where none is installed.
os.environ.update(
    PATH=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
    PYTHONPATH=workflow.basedir,
)
# TensorFlow tells a user little that is new below the level of a warning.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

# A plan makes millions of objects that stay. To look through all of them for garbage as often as
# Python does takes a fifth of its time and finds none.
gc.set_threshold(100_000, 20, 50)

KEPT_METADATA = Path("results/.snakemake-metadata")
DEMO_SLIDES, DEMO_VOLUMES = Path("demo/slides"), Path("demo/volumes")


# No setting of the run, as it says something of this machine: a slide that is not here is no fault.
ELSEWHERE = config.get("slides") == "elsewhere"
if ELSEWHERE:
    del config["slides"]


def read_sheet(settings, sheet, labelled=True):
    """Return the slides or cases of a sheet by their ids; the demo's may still be to be made."""

    def may_be_missing(path):
        return ELSEWHERE or path.parent == DEMO_SLIDES or path.parent.parent == DEMO_VOLUMES

    # Once for all jobs: a cohort of 30,000 has as many processes, and each would look at all files.
    look = workflow.is_main_process
    if settings.task == "volume_segmentation":
        modalities = settings.volumes.modalities
        found = read_cases(Path(sheet), modalities, labelled, may_be_missing, look)
        for dataset in datasets_of(found):
            check_declared(dataset, settings.volumes)
    else:
        found = read_samples(Path(sheet), labelled, may_be_missing, look)
    if workflow.is_main_process:
        for doubt in doubts(found):
            print(f"warning: {sheet}: {doubt}", file=sys.stderr)
    return {member.id: member for member in found}


def check_sheets():
    """Refuse a division that cannot be used and files under two patients; warn of what is doubtful."""
    members, path = list(COHORT.values()), Path(SETTINGS.samples)
    check_labels(members, assign(members, SETTINGS.split), path)
    if ELSEWHERE:
        return  # the files are not here
    warnings = check_copies(members, path)
    if NEW:
        warnings += known_before(list(NEW.values()), members, Path(SETTINGS.predict.samples))
    for warning in warnings:
        print(f"Warning: {warning}", file=sys.stderr, flush=True)


# Options that ask Snakemake for something else than to run jobs.
LOOKS = """
    archive cleanup_metadata cleanup_shadow conda_cleanup_envs conda_create_envs_only
    container_cleanup_images containerize d3dag dag delete_all_output delete_temp_output
    detailed_summary dryrun filegraph generate_unit_tests lint list_changes list_conda_envs
    list_input_changes list_params_changes list_rules list_target_rules list_untracked
    print_compilation report rulegraph summary touch unlock
""".split()


@cache
def options():
    """Return the options that Snakemake was called with; of a job's own Snakemake, None."""
    if not workflow.is_main_process:
        return None
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return parse_args(sys.argv[1:])[1]
    except SystemExit:
        return None  # called by another program, whose arguments are not Snakemake's


def executor():
    """Return what is about to run jobs, None where none will be run; a job's own runs just that."""
    if options() is None or any(getattr(options(), name) for name in LOOKS):
        return None
    return options().executor or "local"


def check_writable(*folders):
    """Refuse to run jobs where nothing can be written."""
    if executor() is not None:
        for folder in folders:
            if os.path.isdir(folder) and not os.access(folder, os.W_OK):
                raise UserError(
                    f"{os.path.abspath(folder)}: cannot be written, and every run writes there, `verify` too; "
                    "call it in a copy of the project"
                )


def check_known(run, *files):
    """Refuse to plan where nothing tells how the files of a run were made.

    A change of settings, code or sheet would then go unseen. To look is allowed, and what ends it.
    """
    asked = options()
    if asked is None or asked.forceall or set(asked.targets) == {"verify"}:
        return
    if any(getattr(asked, name) for name in LOOKS if name != "dryrun"):
        return
    states = itertools.islice(Path(run).glob(f"{RECORDS}/*.json"), 1)
    there = [path for path in (*files, *map(str, states)) if os.path.exists(path)]
    if there and not any(map(is_known, there)):
        raise UserError(
            f"{run}: it is not known with which settings, code and sheet its files were made, as "
            f"{KEPT_METADATA} has nothing about them, so no plan can say what is to be made anew. Put that folder "
            "back, or call Snakemake with --touch --forceall to take all files for current, or with --forceall to make "
            "them anew"
        )


def is_known(path):
    """Return whether Snakemake has noted how a file was made, or that its job has not ended."""
    name = base64.urlsafe_b64encode(path.encode()).decode()
    longest = os.pathconf(os.curdir, "PC_NAME_MAX") - 1
    parts = [name[i : i + longest] for i in range(0, len(name), longest)]
    noted = os.path.join(*(f"@{part}" for part in parts[:-1]), parts[-1])
    return any(os.path.exists(f".snakemake/{kind}/{noted}") for kind in ("metadata", "incomplete"))


def submits_to_slurm():
    """Return whether this Snakemake is about to submit jobs."""
    if any(Path(".snakemake/locks").glob("*")):
        return False  # another is at work, or was killed: Snakemake says what to do
    return shutil.which("squeue") is not None and executor() == "slurm"


def copy_newer(source, target):
    """Copy a file with its time, unless a newer one is there."""
    if not os.path.exists(target) or os.stat(source).st_mtime > os.stat(target).st_mtime:
        shutil.copy2(source, target)


def keep_metadata_beside_results():
    """Have what Snakemake notes of each result lie in results/, where whoever copies them takes it.

    It notes parameters, input files and their checksums; without that, a change goes unseen.
    """
    if not workflow.is_main_process:
        return
    known, kept = Path(".snakemake/metadata"), KEPT_METADATA
    if executor() is not None:
        kept.mkdir(parents=True, exist_ok=True)
    if known.is_symlink() and not known.exists():
        known.unlink()  # results/ was deleted
    if not kept.is_dir() or known.is_symlink():
        return
    if known.is_dir():  # of an earlier release, or of one that was called meanwhile
        shutil.copytree(known, kept, dirs_exist_ok=True, copy_function=copy_newer)
        shutil.rmtree(known)
    # Without this one Snakemake would take the metadata for those of an old release of its own.
    (known.parent / "incomplete").mkdir(parents=True, exist_ok=True)
    # Another Snakemake may have done it in this moment.
    with contextlib.suppress(FileExistsError):
        known.symlink_to(os.path.relpath(kept.resolve(), known.parent.resolve()))


try:
    SETTINGS = load_settings(config, "the configuration")
    COHORT = read_sheet(SETTINGS, SETTINGS.samples)
    new_sheet = SETTINGS.predict.samples
    NEW = read_sheet(SETTINGS, new_sheet, labelled=False) if new_sheet else {}
    if workflow.is_main_process:
        check_sheets()
    # Jobs that a killed Snakemake left with SLURM must not run a second time beside themselves.
    # What they make is waited for, before the plan is made.
    check_writable(".", "results", f"results/{SETTINGS.run}")
    keep_metadata_beside_results()
    if submits_to_slurm():
        await_jobs_of(Path.cwd(), tell=lambda text: print(text, file=sys.stderr, flush=True))
except UserError as error:
    raise WorkflowError(str(error)) from None

RUN = f"results/{SETTINGS.run}"
VOLUMES = SETTINGS.task == "volume_segmentation"
# What a row of the sheet is about, and where the records that are made of it lie.
UNIT, RECORDS = ("case", "volumes") if VOLUMES else ("slide", "tiles")
# What became of those that are learnt from, and of all.
TRAINING_TABLE = f"{RUN}/shards/{UNIT}s.tsv"
TABLE = "cases.tsv" if VOLUMES else "tiles.tsv"
ALL_TABLE, NEW_TABLE = f"{RUN}/{TABLE}", f"{RUN}/predictions/{TABLE}"
# The SHA-256 of each state, for those who read states and the files beside them.
ALL_STATES, NEW_STATES = f"{RUN}/states.tsv", f"{RUN}/predictions/states.tsv"
# The files of all slides or cases.
FILES = sorted(
    {os.path.normpath(path) for one in [*COHORT.values(), *NEW.values()] for path in one.files}
)
# The training's segments, by the epochs that are complete at the end of each.
SEGMENTS = [f"{epoch:04d}" for epoch in SETTINGS.train.segments]


try:
    check_known(
        RUN,
        *(f"{RUN}/splits.tsv", ALL_TABLE, NEW_TABLE, TRAINING_TABLE),
        *(f"{RUN}/shards/manifest.json", f"{RUN}/model/settings.json", f"{RUN}/report/index.html"),
    )
except UserError as error:
    raise WorkflowError(str(error)) from None


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
    return asked_often(lambda wildcards: _code(path))


@cache
def _code(path):
    try:
        return code_of(path)
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
    """Return what tells a rule that a slide or case has another content; its time says nothing.

    Or that something which was made of it is gone or damaged, or that it stalled and may take longer now:
    the note tells all of it.
    """
    faulty = intact(rule)
    limit = (SETTINGS.volumes if VOLUMES else SETTINGS.tiles).stall_minutes

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


def training_options():
    """Return what a training is told of its task, as options of its command."""
    if not VOLUMES:
        return shlex.join(["--tiles", section("tiles")])
    given = {"volumes": section("volumes"), "regions": regions(), "patches": section("patches")}
    return shlex.join([part for name, text in given.items() for part in (f"--{name}", text)])


def regions():
    """Return volumes.regions, which is no part of its section's text: cases stay as prepared."""
    return json.dumps(SETTINGS.volumes.model_dump()["regions"], sort_keys=True)


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
