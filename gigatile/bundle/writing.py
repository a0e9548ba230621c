"""Writes the bundle of a run."""

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from gigatile.bundle.card import write_card
from gigatile.bundle.cohort import look_of
from gigatile.bundle.contents import (
    CALIBRATION,
    METRICS,
    OPERATING_POINTS,
    VERSIONS,
    Bundle,
    BundleManifest,
    open_bundle,
)
from gigatile.bundle.copying import replace_folder, write_manifest
from gigatile.bundle.exports import write_exports
from gigatile.files import read_json, write_json
from gigatile.json_models import write_model
from gigatile.model_files import COHORT, COHORT_IMAGES, DESCRIBED, MODEL
from gigatile.models.saving import load_model
from gigatile.report.earlier_cohorts import earlier_data, earlier_images
from gigatile.report.inputs import read_cohort
from gigatile.report.known_samples import image_hashes
from gigatile.report.task_report import TaskReport
from gigatile.settings.initial_weights import weights_file
from gigatile.tasks import task_part


def write_bundle(
    run: Path,
    task: str,
    report: TaskReport,
    settings: Mapping[str, Mapping[str, Any]],
    name: str,
    out: Path,
    weights: Path | None = None,
) -> Bundle:
    """Write the bundle of a run, whole or not at all; replace an older one.

    Args:
        run: folder of the run: model, evaluation, table and records of the cohort.
        task: of the run.
        report: of the task.
        settings: the sections that prediction depends on.
        name: of the model.
        out: folder to write.
        weights: the file that the training started from; None: there is none.

    Raises:
        UserError: a file of the run is missing or damaged.
    """
    model_dir = run / "model"
    described = _without_paths(read_json(model_dir / DESCRIBED))
    model = load_model(model_dir / MODEL, described["sha256"], model_dir / DESCRIBED)
    rows = [
        replace(row, stratum=report.stratum(row.label))
        for row in read_cohort(
            run / report.table, report.unit, report.columns, report.records_column
        )
    ]
    hashes, compared, missing = image_hashes(rows, run / report.records, report.kind)
    states = [report.read_state(row, run / report.records) for row in rows]
    earlier = earlier_images(report, earlier_data(report, weights), model_dir / DESCRIBED)
    hashes = np.unique(np.concatenate([hashes, earlier.hashes]))
    look = look_of(rows, states, report.unit, compared, missing, earlier.doubt)
    metrics, versions = read_json(run / "evaluation" / METRICS), read_json(model_dir / VERSIONS)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        folder = Path(temporary) / "bundle"
        folder.mkdir()
        shutil.copyfile(model_dir / MODEL, folder / MODEL)
        write_json(folder / DESCRIBED, described)
        write_json(folder / VERSIONS, versions)
        write_json(folder / METRICS, metrics)
        write_model(folder / COHORT, look)
        np.save(folder / COHORT_IMAGES, hashes)
        for source in (run / "validation" / OPERATING_POINTS, run / "evaluation" / CALIBRATION):
            if source.exists():
                shutil.copyfile(source, folder / source.name)
        manifest = BundleManifest(
            name=name,
            version=1,
            task=task,
            classes=described.get("classes", []),
            settings={section: dict(values) for section, values in settings.items()},
            model_sha256=described["sha256"],
            exports=write_exports(_with_scores(model, task, described), task, folder),
            files={},
        )
        write_card(folder, manifest)
        write_manifest(folder, manifest)
        replace_folder(out, folder)
    return open_bundle(out)


def _with_scores(model: keras.Model, task: str, described: Mapping[str, Any]) -> keras.Model:
    """Return a model with the views and the temperature of its scores, for other programs."""
    if "scores" not in described:
        return model
    scored: keras.Model = task_part(task, "choice").model_with_scores(model, described)
    return scored


def _without_paths(described: dict[str, Any]) -> dict[str, Any]:
    """Return a model's settings without paths of this machine."""
    train = dict(described["train"])
    if weights := weights_file(train.get("weights")):
        train["weights"] = weights.name
    return {**described, "train": train}
