"""Ensembles: a folder with the bundles of the models of all folds of a cross-validation.

It also has the figures of all folds together (metrics.json, of classes calibration.json) and their
proof (folds.json).
"""

import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from gigatile.bundle.contents import (
    CALIBRATION,
    ENSEMBLE,
    IGNORED,
    MANIFEST,
    METRICS,
    Bundle,
    is_bundle,
    open_bundle,
)
from gigatile.errors import UserError, all_faults
from gigatile.evaluation.outcomes import OutcomeMetrics
from gigatile.files import sha256_of
from gigatile.json_models import JsonModel, read_model, write_model
from gigatile.model_files import MODEL
from gigatile.report.mean_predictions import (
    MeanOutcomes,
    MeanPredictions,
    MeanScores,
    origin_of,
)
from gigatile.settings.section import RUN_NAME
from gigatile.tasks import find_task

SCHEMA = 1
FOLDS = "folds.json"


class EnsembleManifest(JsonModel):
    """The content of ensemble.json.

    Attributes:
        name: of the ensemble.
        models: the SHA-256 of bundle.json of each bundle, by its folder in the ensemble.
        files: the SHA-256 of the other files, by name.
    """

    schema_version: int = Field(SCHEMA, alias="schema", ge=SCHEMA, le=SCHEMA)
    name: str = Field(pattern=RUN_NAME)
    models: dict[str, str]
    files: dict[str, str]


@dataclass(frozen=True)
class Ensemble:
    """An opened ensemble.

    Attributes:
        folder: of its files.
        name: of the ensemble.
        bundles: of its models.
    """

    folder: Path
    name: str
    bundles: Sequence[Bundle]

    def mean(self) -> MeanPredictions:
        """Return how the predictions of the models are put together.

        Raises:
            UserError: metrics.json of a model of outcomes is missing or damaged.
        """
        first = self.bundles[0].manifest
        if find_task(first.task).classifies_slides:
            return MeanScores(first.classes)
        figures = [read_model(OutcomeMetrics, each.folder / METRICS) for each in self.bundles]
        if len({each.kind for each in figures}) > 1:
            raise UserError(f"{self.folder}: some models predict numbers, and others survival")
        return MeanOutcomes(figures[0].kind, [origin_of(each) for each in figures])


def open_ensemble(folder: Path) -> Ensemble:
    """Open an ensemble; the files of its bundles are compared with their checksums.

    Raises:
        UserError: lists all files that are missing, damaged or added, and models that do not
            predict the same.
    """
    manifest = read_model(EnsembleManifest, folder / ENSEMBLE)
    faults, bundles = [], []
    for name, expected in [*manifest.models.items(), *manifest.files.items()]:
        path = folder / name / MANIFEST if name in manifest.models else folder / name
        # Names from a file that was sent along must not lead to another folder.
        if not re.fullmatch(RUN_NAME, name) or not path.is_file():
            faults.append(f"{name}: missing")
        elif (folder / name).is_symlink() or path.is_symlink():
            faults.append(f"{name}: a link; must be a file or folder")
        elif sha256_of(path) != expected:
            faults.append(f"{name}: its content differs from the checksum in {ENSEMBLE}")
    known = {ENSEMBLE, *manifest.models, *manifest.files, *IGNORED}
    faults += [
        f"{path.name}: not in {ENSEMBLE}" for path in folder.iterdir() if path.name not in known
    ]
    if len(manifest.models) < 2:
        faults.append(f"{ENSEMBLE}: has fewer than two models")
    if not faults:
        bundles = [open_bundle(folder / name) for name in manifest.models]
        faults = _faults_of(bundles, manifest.name)
    if faults:
        raise all_faults(f"{folder}: not the ensemble that was written", faults)
    return Ensemble(folder, manifest.name, bundles)


def bundles_of(runs: Sequence[Path], inputs: Mapping[str, str]) -> list[Bundle]:
    """Open the bundles of runs, which must have the models that were tested.

    Args:
        runs: folders of the runs.
        inputs: of the proof of their folds; see `gigatile.report.pooled_folds.FoldsProof`.

    Raises:
        UserError: lists the runs that have no such bundle.
    """
    bundles, faults = [], []
    for run in runs:
        folder, name = run / "model/bundle", run.resolve().name
        if not is_bundle(folder):
            faults.append(f"{run}: has no bundle; write it with: gigatile bundle CONFIGURATION")
            continue
        bundle = open_bundle(folder)
        bundles.append(bundle)
        if bundle.manifest.model_sha256 != inputs.get(f"{name}/model/{MODEL}"):
            faults.append(f"{folder}: has another model than that which was tested; write it again")
    if faults:
        raise all_faults("an ensemble needs a bundle of each run", faults)
    return bundles


def write_ensemble(bundles: Sequence[Bundle], pooled: Path, out: Path) -> Ensemble:
    """Copy bundles into a new folder, whole or not at all.

    Args:
        bundles: of the models of all folds.
        pooled: folder of the pooled folds, as `gigatile.report.pooled_folds.PooledFolds.write`
            writes it.
        out: the new folder; the ensemble has its name.

    Raises:
        UserError: `out` exists and is not an empty folder, its name cannot be used, or the models
            do not predict the same.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists; name a new folder for the ensemble")
    if not re.fullmatch(RUN_NAME, out.name):
        raise UserError(f"{out}: the name of an ensemble must match {RUN_NAME}")
    if faults := _faults_of(bundles, out.name):
        raise all_faults("these bundles cannot be an ensemble", faults)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        folder = Path(temporary) / out.name
        folder.mkdir()
        models = {}
        for bundle in bundles:
            copy = folder / bundle.manifest.name
            shutil.copytree(bundle.folder, copy, ignore=shutil.ignore_patterns(*IGNORED))
            models[copy.name] = sha256_of(copy / MANIFEST)
        sources = {FOLDS: pooled / FOLDS}
        sources |= {name: pooled / "evaluation" / name for name in (METRICS, CALIBRATION)}
        # Predicted numbers and risks have no calibration.json.
        files = {}
        for name, source in sources.items():
            if name != CALIBRATION or source.exists():
                shutil.copy(source, folder / name)
                files[name] = sha256_of(folder / name)
        manifest = EnsembleManifest(name=out.name, models=models, files=files)
        write_model(folder / ENSEMBLE, manifest)
        if out.exists():
            out.rmdir()
        folder.rename(out)
    return open_ensemble(out)


def _faults_of(bundles: Sequence[Bundle], name: str) -> list[str]:
    """Return why models cannot be an ensemble of this name.

    Their names must differ. They must see new slides in the same way, and predict the same.
    """
    first, *others = (bundle.manifest for bundle in bundles)
    names = [bundle.manifest.name for bundle in bundles]
    faults = [
        f"two models have the name {name}"
        for name in sorted({n for n in names if names.count(n) > 1})
    ]
    # The results of the models and of the ensemble are in folders of these names.
    taken = {ENSEMBLE, FOLDS, METRICS, CALIBRATION, name}
    faults += [
        f"the name {model} of a model is taken by the ensemble" for model in names if model in taken
    ]
    for other in others:
        faults += [
            f"{other.name} has {what} than {first.name}"
            for what, same in (
                ("another task", other.task == first.task),
                ("another set of classes", other.classes == first.classes),
                ("other settings", other.settings == first.settings),
            )
            if not same
        ]
    task = find_task(first.task)
    if not (task.classifies_slides or task.predicts_outcomes):
        faults.append(f"task: {first.task} has no ensembles")
    return faults
