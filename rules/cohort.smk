# The settings, the sheets, and the names of a run's files. No rule is here.
import os
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

from gigatile.cohort.copies import check_copies, copies_in_cohort
from gigatile.cohort.sheet_conflicts import sheet_warnings
from gigatile.cohort.splits import assign, check_labels
from gigatile.errors import UserError
from gigatile.settings.whole import load_settings
from gigatile.slurm import await_jobs_of
from gigatile.tasks import find_task

DEMO_SLIDES, DEMO_VOLUMES = Path("demo/slides"), Path("demo/volumes")


# A setting of this machine, not of the run: the slides may be on another one.
ELSEWHERE = config.get("slides") == "elsewhere"
if ELSEWHERE:
    del config["slides"]


def warn(warnings):
    """Print warnings."""
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr, flush=True)


def read_sheet(settings, sheet, labelled=True):
    """Return the slides or cases of a sheet by their ids; the demo's may still be to be made."""

    def may_be_missing(path):
        return ELSEWHERE or path.parent == DEMO_SLIDES or path.parent.parent == DEMO_VOLUMES

    # Each job has a process of its own; if all of them checked every file, 30,000 slides would cost
    # 1.9 billion calls of stat.
    look = workflow.is_main_process
    task = find_task(settings.task)
    members = task.read_sheet(Path(sheet), settings, labelled, may_be_missing, look)
    if workflow.is_main_process:
        warn(f"{sheet}: {warning}" for warning in sheet_warnings(members))
    return {member.id: member for member in members}


def check_sheets():
    """Refuse splits that cannot be used and files of two patients; warn of other copies."""
    members, path = list(COHORT.values()), Path(SETTINGS.samples)
    check_labels(members, assign(members, SETTINGS.split), path)
    if ELSEWHERE:
        return  # the files are not here
    warnings = check_copies(members, path)
    if NEW:
        warnings += copies_in_cohort(list(NEW.values()), members, Path(SETTINGS.predict.samples))
    warn(warnings)


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
        await_jobs_of(Path.cwd(), log=lambda text: print(text, file=sys.stderr, flush=True))
except UserError as error:
    raise WorkflowError(str(error)) from None

RUN = f"results/{SETTINGS.run}"
TASK = find_task(SETTINGS.task)
VOLUMES = SETTINGS.task == "volume_segmentation"
UNIT, RECORDS = TASK.unit, TASK.records
# What became of those that are learnt from, and of all.
TRAINING_TABLE = f"{RUN}/shards/{UNIT}s.tsv"
ALL_TABLE, NEW_TABLE = f"{RUN}/{TASK.table}", f"{RUN}/predictions/{TASK.table}"
# The SHA-256 of each state, for those who read states and the files beside them.
ALL_STATES, NEW_STATES = f"{RUN}/states.tsv", f"{RUN}/predictions/states.tsv"
# The files of all slides or cases.
FILES = sorted(
    {os.path.normpath(path) for one in [*COHORT.values(), *NEW.values()] for path in one.files}
)
# The training's segments, by the epochs that are complete at the end of each.
SEGMENTS = [f"{epoch:04d}" for epoch in SETTINGS.train.segments]


def recorded_files():
    """Yield outputs of the run: one or two of each stage, then the states of all rows of the sheets.

    Without states of slides that left the sheet: no job makes them, so no option can cure them.
    """
    yield from (f"{RUN}/splits.tsv", ALL_TABLE, NEW_TABLE, TRAINING_TABLE)
    yield from (f"{RUN}/{name}" for name in ("shards/manifest.json", "model/settings.json"))
    yield f"{RUN}/report/index.html"
    yield from (f"{RUN}/{RECORDS}/{member}.json" for member in COHORT)
    yield from (f"{RUN}/predictions/{RECORDS}/{member}.json" for member in NEW)


try:
    check_known(RUN, recorded_files())
except UserError as error:
    raise WorkflowError(str(error)) from None
