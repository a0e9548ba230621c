# Functions and parameters that several rules use. No rules.
import json
import os
import shlex
from pathlib import Path

from gigatile.cohort.sheet import SAFE_ID
from gigatile.cohort.splits import checksum_of, rows_of_splits
from gigatile.files import sha256_of
from gigatile.provenance.code import Plugins
from gigatile.settings.section import canonical
from gigatile.settings.split import SPLITS
from gigatile.workflow.inputs import (
    case_options,
    cohorts_of_weights,
    compared_files,
    embeddings_from,
    encoder_of,
    images_of_part,
    initial_weights,
    large_files,
    literal,
    on_disk,
)
from gigatile.workflow.inputs import (
    previous_segment,
    earlier_segments,
    slide_options,
    small_files,
    source_files,
    source_text,
    source_texts,
    weights_option,
)
from gigatile.workflow.resources import grow, launch_options, mpi_resources
from gigatile.workflow.resources import rank_options, reuse_option, tiling_options
from gigatile.workflow.rule_provenance import RuleProvenance, recorded, run_recorded


wildcard_constraints:
    **{TASK.unit: SAFE_ID},
    epoch=r"\d{4}",


PROVENANCE = RuleProvenance(
    INVOCATION,
    RUN,
    Path(workflow.basedir) / "scripts",
    Plugins(SETTINGS.task, SETTINGS.train.model),
    getattr(SETTINGS, TASK.preparation).stall_minutes,
)
code, provenance = PROVENANCE.code, PROVENANCE.params

# --- Settings


def section(name):
    """Return the section of the settings that a rule reads, as text."""
    return literal(canonical(getattr(SETTINGS, name)))


def task_settings(stage):
    """Return the settings of the task that a stage depends on, as JSON."""
    settings = getattr(TASK, stage)(SETTINGS)
    return literal(json.dumps(settings, sort_keys=True, separators=(",", ":")))


# --- Sheets


def members_of(*splits):
    """Return the rows of splits, as the commands read them; see gigatile/cohort/splits.py."""
    return rows_of_splits(COHORT.values(), SETTINGS.split, *splits)


def states_of(*splits):
    """Return the states of the slides, cases or images of splits."""
    names = record_names(members_of(*splits))
    return [f"{RUN}/{RECORDS}/{name}.json" for name in names]


def segmentations_of(*splits):
    """Return the reference segmentations of the cases of splits."""
    cases = [COHORT[row["case"]] for row in members_of(*splits)]
    return on_disk(case.segmentation for case in cases)


def rows_of(*splits):
    """Return a parameter that changes with the rows of splits in the sheet."""
    return checksum_of(members_of(*splits))


def rows_of_new():
    """Return a parameter that changes with the rows of new data, but not with their labels or sites."""
    return checksum_of([{UNIT: row.id, "patient": row.patient} for row in NEW.values()])


def sheet(path):
    """Return a parameter that changes with the content of a sheet, not with its time."""
    return lambda wildcards: sha256_of(Path(path))


# --- Paths


def packed(ending=""):
    """Return the option that packs the records and logs of the jobs per slide or case."""
    stage = {"tiles": "tile", "volumes": "prepare", "embeddings": "embed"}.get(RECORDS)
    if stage is None:
        return []
    return ["--pack", f"{RUN}/provenance/{stage}{ending}", f"{RUN}/logs/{stage}{ending}"]


def folder(name="."):
    """Return a parameter: a folder of the run, with files that a table or a manifest lists."""
    return lambda wildcards: os.path.normpath(f"{RUN}/{name}")
