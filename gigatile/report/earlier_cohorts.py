"""The data of the models that a training started from, compared with other data.

The file of `train.weights` may be the model of another run or of a bundle, which may have started
from a third one. In the folder of a run, its patients, files and images are known; in a bundle,
only hashes of its images.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gigatile.cohort.names import same_names
from gigatile.earlier_models import earlier_models
from gigatile.files import read_json
from gigatile.model_files import COHORT_IMAGES, DESCRIBED
from gigatile.records.manifest import read_manifest
from gigatile.report.inputs import CohortRow, read_cohort
from gigatile.report.known_samples import image_hashes, read_images
from gigatile.report.leakage import Check, manifest_faults
from gigatile.report.provenance import checksum
from gigatile.report.task_report import Run, TaskReport
from gigatile.settings.initial_weights import INITIAL_WEIGHTS

# Sections of a model's settings that its images depend on.
_OF_IMAGES = ("tiles", "volumes", "instances")
SHARDS = "shards/manifest.json"


@dataclass(frozen=True)
class EarlierCohort:
    """What is known of the data of a model that the training started from.

    Attributes:
        model: its file.
        folder: of its run; None: its run is not known.
        rows: of train and valid, in the table of its run.
        hashes: the hashes of a bundle; None: it is in none.
    """

    model: Path
    folder: Path | None = None
    rows: Sequence[CohortRow] = ()
    hashes: Path | None = None


@dataclass(frozen=True)
class EarlierData:
    """The data of all models that the training started from.

    Attributes:
        cohorts: of each model.
        doubt: why it may have been trained on others, too; empty: it was not.
    """

    cohorts: Sequence[EarlierCohort] = ()
    doubt: str = ""


def earlier_data(task: TaskReport, weights: Path | None) -> EarlierData:
    """Return the data of all models that a training started from, as far as they are known.

    Args:
        task: of the training.
        weights: the file of `train.weights`; None: there is none.

    Raises:
        UserError: a file is damaged.
    """
    earlier = earlier_models(weights)
    doubts = [earlier.doubt] if earlier.doubt else []
    cohorts = []
    for model in earlier.models:
        hashes, folder = model.parent / COHORT_IMAGES, model.parent.parent
        if hashes.exists():
            cohorts.append(EarlierCohort(model, hashes=hashes))
        elif (folder / task.table).exists():
            rows = read_cohort(folder / task.table, task.unit, task.columns, task.records_column)
            if not _was_trained_on(task, folder, model, rows):
                doubts.append(f"the table in {folder.name} is not that of its training")
            trained = [row for row in rows if row.split in ("train", "valid")]
            cohorts.append(EarlierCohort(model, folder, trained))
        else:
            cohorts.append(EarlierCohort(model))
            doubts.append(f"the data of {model.name} are not next to it")
    return EarlierData(cohorts, "; ".join(doubts))


def _was_trained_on(
    task: TaskReport, folder: Path, model: Path, cohort: Sequence[CohortRow]
) -> bool:
    """Return whether the model of a run was trained on the cohort in its table."""
    manifest = folder / SHARDS
    inputs = read_json(model.parent / DESCRIBED).get("inputs", {})
    if not manifest.exists() or inputs.get(SHARDS) != checksum(manifest):
        return False
    usable = [row for row in cohort if row.state != "failed"]
    content = read_manifest(manifest)
    return not manifest_faults(content, usable, task.kind, task.unit, task.records)


@dataclass(frozen=True)
class EarlierImages:
    """Hashes of the images of all earlier cohorts.

    Attributes:
        hashes: (n,) uint64, sorted.
        doubt: why some are missing; empty: none is.
    """

    hashes: np.ndarray
    doubt: str = ""


def earlier_images(task: TaskReport, earlier: EarlierData, described: Path) -> EarlierImages:
    """Return the hashes of the images of earlier cohorts, which equal slides or cases share.

    Args:
        task: of the training.
        earlier: the cohorts.
        described: the settings of the model that is compared. Images that were made with other
            settings cannot be compared.

    Raises:
        UserError: a file is damaged.
    """
    hashes = [np.empty(0, np.uint64)]
    doubts = [earlier.doubt] if earlier.doubt else []
    settings = read_json(described)
    for cohort in earlier.cohorts:
        if doubt := _other_images(task, cohort, settings):
            doubts.append(doubt)
        elif cohort.hashes:
            hashes.append(read_images(cohort.hashes))
        elif cohort.folder:
            own, _, missing = image_hashes(cohort.rows, cohort.folder / task.records, task.kind)
            hashes.append(own)
            if missing:
                doubts.append(f"the {task.kind.image}s of {missing} {task.unit}s are missing")
    return EarlierImages(np.unique(np.concatenate(hashes)), "; ".join(doubts))


def _other_images(task: TaskReport, cohort: EarlierCohort, settings: Mapping[str, Any]) -> str:
    """Return why equal slides or cases have other images in a cohort; empty: they do not."""
    path = cohort.model.parent / DESCRIBED
    made = read_json(path) if path.exists() else {}
    if all(made.get(name) == settings.get(name) for name in _OF_IMAGES):
        return ""
    return f"the {task.kind.image}s of {cohort.model.name} were made otherwise"


def doubt_of_pixels(task: TaskReport, earlier: EarlierData, described: Path) -> str:
    """Return why a comparison of pixels with earlier cohorts may find nothing; empty: it does not.

    Args:
        task: of the training.
        earlier: the cohorts.
        described: the settings of the model that is compared.
    """
    settings = read_json(described)
    doubts = [earlier.doubt, *(_other_images(task, c, settings) for c in earlier.cohorts)]
    return "; ".join(filter(None, doubts))


def initial_checks(
    task: TaskReport,
    run: Run,
    earlier: EarlierData,
    images: EarlierImages,
    known: Sequence[str],
) -> list[Check]:
    """Return the checks of a model that was not trained from random or published weights.

    A check with a doubt counts as not made, unless it fails.

    Args:
        task, run: of the report.
        earlier: the cohorts of the initial weights.
        images: of these cohorts.
        known: slides or cases of valid and test with images of these cohorts.
    """
    if INITIAL_WEIGHTS not in run.model.inputs:
        return []
    doubt = earlier.doubt or ("a bundle has no patients" if _has_bundle(earlier) else "")
    claim = f"{INITIAL_WEIGHTS} were not trained on"
    before = {row.patient for cohort in earlier.cohorts for row in cohort.rows}
    later = {row.patient for row in run.cohort if row.split != "train"}
    files = _files(task, run, earlier)
    of_run = [(file, name) for split, file, name in task.image_files(run) if split != "train"]
    return [
        _check(
            f"{claim} patients of valid and test",
            _same_patients(before, later),
            f"{len(before)} and {len(later)} patients",
            doubt,
        ),
        _check(
            f"{claim} image files of valid and test",
            [f"{files[file]} = {name}" for file, name in of_run if file in files],
            f"{len(files)} and {len(of_run)} files",
            doubt,
        ),
        _check(
            f"{claim} {task.kind.image}s of valid and test",
            list(known),
            f"{len(images.hashes):,} {task.kind.image}s compared",
            images.doubt,
        ),
    ]


def _check(claim: str, faults: list[str], counted: str, doubt: str) -> Check:
    return Check(claim, faults, f"{counted}; but {doubt}" if doubt else counted, checked=not doubt)


def _has_bundle(earlier: EarlierData) -> bool:
    return any(cohort.hashes for cohort in earlier.cohorts)


def _files(task: TaskReport, run: Run, earlier: EarlierData) -> dict[str, str]:
    """Return the slide or case of each fingerprint of an image file of the earlier cohorts."""
    files: dict[str, str] = {}
    for cohort in earlier.cohorts:
        if cohort.folder:
            records = cohort.folder / task.records
            states = {row.id: task.read_state(row, records) for row in cohort.rows}
            other = replace(run, cohort=cohort.rows, states=states)
            files |= {fingerprint: name for _, fingerprint, name in task.image_files(other)}
    return files


def _same_patients(before: set[str], later: set[str]) -> list[str]:
    """Return the patients in both sets, also those with two spellings of the id."""
    spelled = {
        " / ".join(sorted(names))
        for names in same_names(sorted(before | later))
        if before & set(names) and later & set(names)
    }
    return sorted((before & later) | spelled)
