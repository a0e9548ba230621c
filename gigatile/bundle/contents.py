"""The content of a bundle, and how it is opened and checked."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue

from gigatile.errors import UserError, all_faults
from gigatile.files import read_json, sha256_of
from gigatile.json_models import JsonModel, read_model
from gigatile.model_files import DESCRIBED, MODEL
from gigatile.settings.section import RUN_NAME
from gigatile.tasks import TASKS

SCHEMA = 1
# The files of a bundle.
MANIFEST, VERSIONS, METRICS, CARD = "bundle.json", "versions.json", "metrics.json", "card.md"
OPERATING_POINTS = "operating_points.json"
CALIBRATION = "calibration.json"
# The file of an ensemble of bundles.
ENSEMBLE = "ensemble.json"
SAVED_MODEL, ONNX = "saved_model", "model.onnx"
# Snakemake writes it into a folder that a rule makes.
IGNORED = (".snakemake_timestamp",)


class Export(JsonModel):
    """An export of the model to another format, compared with the model itself.

    Attributes:
        difference: largest absolute difference of a score, on the inputs of the comparison.
        tolerance: the largest one that is accepted.
        inputs: number of inputs that were compared.
        missing: why there is no export; None if there is one.
    """

    difference: float | None = None
    tolerance: float | None = None
    inputs: int = 0
    missing: str | None = None


class BundleManifest(JsonModel):
    """The content of bundle.json.

    Attributes:
        name: of the model; that of the run, unless it was given another one.
        version: a whole number from 1, as TensorFlow Serving counts versions.
        task: of the run.
        classes: names of the scores, in order; empty for tasks without classes.
        settings: the sections of the settings that prediction depends on.
        model_sha256: SHA-256 of model.keras.
        exports: by the name of the file or folder in the bundle.
        files: SHA-256 of every other file, by its path in the bundle.
    """

    schema_version: int = Field(SCHEMA, alias="schema", ge=SCHEMA, le=SCHEMA)
    name: str = Field(pattern=RUN_NAME)
    version: int = Field(ge=1)
    task: str
    classes: list[str]
    settings: dict[str, dict[str, JsonValue]]
    model_sha256: str
    exports: dict[str, Export]
    files: dict[str, str]


@dataclass(frozen=True)
class Bundle:
    """An opened bundle.

    Attributes:
        folder: of its files.
        manifest: the content of bundle.json.
    """

    folder: Path
    manifest: BundleManifest

    @property
    def model(self) -> Path:
        """The model (.keras)."""
        return self.folder / MODEL

    @property
    def described(self) -> Path:
        """The model's settings.json."""
        return self.folder / DESCRIBED

    @property
    def metrics(self) -> dict[str, Any] | None:
        """The metrics of the test split, as in evaluation/metrics.json; None if not evaluated."""
        path = self.folder / METRICS
        if not path.exists():
            return None
        content: dict[str, Any] = read_json(path)
        return content


def open_bundle(folder: Path, *, check: bool = True) -> Bundle:
    """Open a bundle.

    Args:
        folder: that `gigatile bundle` wrote.
        check: whether to compare the checksums of all files.

    Raises:
        UserError: the folder is no bundle, or lists all files that are missing, damaged or added.
    """
    folder = Path(folder)
    if (folder / ENSEMBLE).is_file():
        raise UserError(
            f"{folder}: an ensemble of several bundles; only gigatile predict uses it as a whole"
        )
    if not (folder / MANIFEST).is_file():
        raise UserError(
            f"{folder}: not a bundle, it has no {MANIFEST}; write one with: gigatile bundle DIR"
        )
    manifest = read_model(BundleManifest, folder / MANIFEST)
    if manifest.task not in TASKS:
        raise UserError(
            f"{folder / MANIFEST}: task: found {manifest.task!r}; must be one of {', '.join(TASKS)}"
        )
    if check:
        _check_files(folder, manifest)
    return Bundle(folder, manifest)


def is_bundle(path: Path) -> bool:
    """Return whether a path is the folder of a bundle."""
    return (path / MANIFEST).is_file()


def _check_files(folder: Path, manifest: BundleManifest) -> None:
    faults = []
    for name, expected in manifest.files.items():
        path = folder / name
        # A name from a file that was sent along: it must not lead to another folder.
        if not re.fullmatch(r"(?:[\w-][\w.-]*/)*[\w-][\w.-]*", name) or not path.is_file():
            faults.append(f"{name}: missing")
        elif _is_link(folder, path):
            faults.append(f"{name}: a link; must be a file")
        elif sha256_of(path) != expected:
            faults.append(f"{name}: its content differs from the checksum in {MANIFEST}")
    if manifest.files.get(MODEL) != manifest.model_sha256:
        faults.append(f"{MODEL}: not listed, or with another checksum than that of the model")
    known = {*manifest.files, MANIFEST, *IGNORED}
    present = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    faults += [f"{name}: not a file of the bundle" for name in sorted(present - known)]
    if faults:
        raise all_faults(f"{folder}: damaged; copy the bundle again", faults)


def _is_link(folder: Path, path: Path) -> bool:
    """Return whether a file or a folder on the way to it is a symbolic link."""
    return path.is_symlink() or any(
        parent.is_symlink() for parent in path.parents if folder in parent.parents
    )
