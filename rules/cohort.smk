# The settings, the sample sheets, and the paths of a run's files. No rules.
from pathlib import Path

from snakemake.exceptions import WorkflowError

from gigatile.errors import UserError
from gigatile.settings.whole import load_settings
from gigatile.tasks import find_task
from gigatile.workflow.metadata import check_metadata, keep_metadata_in_results
from gigatile.workflow.sheets import check_sheets, read_sheet

# A setting of this machine, not of the run: the slides are on another machine.
ELSEWHERE = config.get("slides") == "elsewhere"
if ELSEWHERE:
    del config["slides"]


def may_be_missing(path):
    """Return whether a file of a sheet may be missing: elsewhere, or the demo will create it."""
    demo = (Path("demo/slides"), Path("demo/volumes"))
    return ELSEWHERE or path.parent == demo[0] or path.parent.parent == demo[1]


try:
    SETTINGS = load_settings(config, "the configuration")
    TASK = find_task(SETTINGS.task)
    # The rows of the sheets by id: of the cohort, and of new data.
    COHORT = read_sheet(INVOCATION, SETTINGS, SETTINGS.samples, may_be_missing)
    NEW = read_sheet(INVOCATION, SETTINGS, SETTINGS.predict.samples, may_be_missing, labelled=False)
except UserError as error:
    raise WorkflowError(str(error)) from None

# --- Paths

RUN = f"results/{SETTINGS.run}"
UNIT, RECORDS = TASK.unit, TASK.records
# Tables of the slides or cases for training, of all of them, and of new data.
TRAINING_TABLE = f"{RUN}/shards/{UNIT}s.tsv"
ALL_TABLE, NEW_TABLE = f"{RUN}/{TASK.table}", f"{RUN}/predictions/{TASK.table}"
# The SHA-256 of each state: inputs of rules that read states, and files listed in states.
ALL_STATES, NEW_STATES = f"{RUN}/states.tsv", f"{RUN}/predictions/states.tsv"
# The segments of the training, by their last epoch.
SEGMENTS = [f"{epoch:04d}" for epoch in SETTINGS.train.segments]


def outputs_with_metadata():
    """Yield outputs of the run: one or two of each stage, then the states of all rows of the sheets.

    Not the states of slides that were removed from the sheet: no job makes them again.
    """
    yield from (f"{RUN}/splits.tsv", ALL_TABLE, NEW_TABLE, TRAINING_TABLE)
    yield from (f"{RUN}/{name}" for name in ("shards/manifest.json", "model/settings.json"))
    yield f"{RUN}/report/index.html"
    yield from (f"{RUN}/{RECORDS}/{name}.json" for name in COHORT)
    yield from (f"{RUN}/predictions/{RECORDS}/{name}.json" for name in NEW)


try:
    check_sheets(INVOCATION, SETTINGS, COHORT, NEW, with_files=not ELSEWHERE)
    INVOCATION.check_writable(".", "results", RUN)
    keep_metadata_in_results(INVOCATION)
    INVOCATION.await_earlier_jobs()
    check_metadata(INVOCATION, RUN, outputs_with_metadata())
except UserError as error:
    raise WorkflowError(str(error)) from None
