# The settings, the sample sheets, and the paths of a run's files. No rules.
import os
from pathlib import Path

from snakemake.exceptions import WorkflowError

from gigatile.bundle.configuration import with_bundle
from gigatile.bundle.external import check_external, is_external
from gigatile.cohort.images import with_scale_of_images
from gigatile.cohort.new_labels import references_of
from gigatile.cohort.splits import rows_of_splits
from gigatile.errors import UserError
from gigatile.records.parts import part_of
from gigatile.settings.split import SPLITS
from gigatile.settings.whole import load_settings
from gigatile.tasks import find_task
from gigatile.workflow.metadata import check_metadata, keep_metadata_in_results
from gigatile.workflow.sheets import check_sheets, read_sheet, read_slides

# A setting of this machine, not of the run: the slides are on another machine.
ELSEWHERE = config.get("slides") == "elsewhere"
if ELSEWHERE:
    del config["slides"]


def may_be_missing(path):
    """Return whether a file of a sheet may be missing: elsewhere, or the demo will create it."""
    demo = (Path("demo/slides"), Path("demo/images"))
    return ELSEWHERE or path.parent in demo or path.parent.parent == Path("demo/volumes")


try:
    config = with_bundle(config, Path(), check=INVOCATION.is_main_process)
    SETTINGS = load_settings(config, "the configuration")
    TASK = find_task(SETTINGS.task)
    # The folder of a bundle, whose model predicts new data. Then there is no cohort.
    BUNDLE = SETTINGS.predict.bundle
    # The rows of the sheets by id: of the cohort, and of new data.
    COHORT = {} if BUNDLE else read_sheet(INVOCATION, SETTINGS, SETTINGS.samples, may_be_missing)
    if TASK.detects_on_slides and not BUNDLE:
        SETTINGS = with_scale_of_images(SETTINGS, COHORT.values())
    NEW = read_sheet(INVOCATION, SETTINGS, SETTINGS.predict.samples, may_be_missing, labelled=False)
    # Whole slides, of which instances are detected.
    SLIDES = read_slides(INVOCATION, SETTINGS, may_be_missing)
    # Whether new data have labels or references, so that the model is evaluated on them.
    EXTERNAL = is_external(SETTINGS, NEW.values())
    # The files with the references, by the id of the row.
    REFERENCES = (
        references_of(NEW.values(), Path(SETTINGS.predict.samples), TASK.truth[0])
        if EXTERNAL and not TASK.classifies_slides and not TASK.predicts_outcomes
        else {}
    )
    if INVOCATION.is_main_process:
        check_external(SETTINGS, list(COHORT.values()), list(NEW.values()), may_be_missing)
except UserError as error:
    raise WorkflowError(str(error)) from None

# --- Paths

RUN = f"results/{SETTINGS.run}"
# The model of the predictions, and its files.
MODEL = os.path.normpath(BUNDLE) if BUNDLE else f"{RUN}/model"
MODEL_FILES = [f"{MODEL}/{name}" for name in ("model.keras", "settings.json", "versions.json")]
# The thresholds that were chosen on the validation split; a task that chooses some replaces this.
OPERATING_POINTS = []
UNIT, RECORDS = TASK.unit, TASK.records
# The number of parts of each split in which images are prepared, a job for each. None: a job for each slide or case.
PARTS = TASK.parts(SETTINGS)
ROWS = rows_of_splits(COHORT.values(), SETTINGS.split, *SPLITS)
NEW_ROWS = [{UNIT: name} for name in NEW]
PARTS_OPTION = "" if PARTS is None else f"--parts {PARTS}"


def record_names(rows):
    """Return the names of the files of records of some rows, each once; rows of new data have no split."""
    if PARTS is None:
        return [row[UNIT] for row in rows]
    return list(dict.fromkeys(part_of(row[UNIT], row.get("split", ""), PARTS) for row in rows))


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
    yield from (f"{RUN}/{RECORDS}/{name}.json" for name in record_names(ROWS))
    yield from (f"{RUN}/predictions/{RECORDS}/{name}.json" for name in record_names(NEW_ROWS))
    yield from (f"{RUN}/predictions/slides/{name}.json" for name in SLIDES)


try:
    check_sheets(INVOCATION, SETTINGS, COHORT, NEW, with_files=not ELSEWHERE, slides=SLIDES)
    INVOCATION.check_writable(".", "results", RUN)
    keep_metadata_in_results(INVOCATION)
    INVOCATION.await_earlier_jobs(RUN)
    check_metadata(INVOCATION, RUN, outputs_with_metadata())
except UserError as error:
    raise WorkflowError(str(error)) from None
