"""The folder in which a bundle predicts: its configuration, and a sheet of named files."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from gigatile.bundle.contents import Bundle
from gigatile.command.configuration import CONFIGURATION
from gigatile.command.slide_folder import is_slide, unique_id
from gigatile.errors import UserError, all_faults
from gigatile.files import write_text
from gigatile.paths import fault_of_path
from gigatile.stores.addresses import address_of, is_remote, parse_address
from gigatile.tables import write_table
from gigatile.tasks import find_task

SHEET = "samples.tsv"
SHEET_SUFFIXES = (".tsv", ".csv", ".txt")
HEADER = """\
# Predictions with a bundle, written by gigatile predict. Settings of the machine, such as
# `tiles: {cores: 4}`, can be added; all others are those of the bundle. Paths are relative to this
# folder.
"""


def prepare_run(
    bundle: Bundle,
    named: Sequence[Path],
    out: Path | None,
    encoder: Path | None = None,
    *,
    file: str = CONFIGURATION,
    reuse: str | None = None,
) -> tuple[Path, Path]:
    """Write the configuration of predictions with a bundle, or find the one that exists.

    Args:
        bundle: the bundle.
        named: a sheet; or slides or images, of which a sheet is written.
        out: folder of the configuration and of the results; None: one in the current folder, with
            the names of the model and of the sheet or the first file.
        encoder: the file of the encoder, for a model for embeddings.
        file: name of the configuration.
        reuse: a run in the same folder that has the same tiles and embeddings; None: none.

    Returns:
        The configuration and the sheet.

    Raises:
        UserError: the folder has other predictions, or a file cannot be used.
    """
    is_sheet = len(named) == 1 and named[0].suffix.lower() in SHEET_SUFFIXES
    if is_sheet and not named[0].is_file():
        raise UserError(f"{named[0]}: no such sheet")
    name = bundle.manifest.name
    out = (out or Path(f"{name}-{named[0].stem}")).absolute()
    sheet = named[0].absolute() if is_sheet else out / SHEET
    setting, unit = _setting(bundle, named, is_sheet)
    rows = [] if is_sheet else _rows(named, out)
    configuration = out / file
    start = out.resolve()
    predict = {
        "bundle": os.path.relpath(bundle.folder.resolve(), start),
        setting: os.path.relpath(sheet.resolve(), start),
    }
    content: dict[str, Any] = {"run": name, "predict": predict}
    if reuse is not None:
        content["reuse"] = reuse
    if encoder is not None:
        if "encoder" not in find_task(bundle.manifest.task).sections:
            raise UserError(f"--encoder: not used by task: {bundle.manifest.task}")
        if not encoder.is_file():
            raise UserError(f"--encoder: no such file: {encoder}")
        content["encoder"] = {"file": os.path.relpath(encoder.resolve(), start)}
    if configuration.exists():
        _check_same(configuration, predict)
    if rows:
        write_table(sheet, (unit, "path"), rows)
    if not configuration.exists():
        write_text(configuration, HEADER + yaml.safe_dump(content, sort_keys=False))
    return configuration, sheet


def _setting(bundle: Bundle, named: Sequence[Path], is_sheet: bool) -> tuple[str, str]:
    """Return the key of the section `predict` for the sheet, and the unit of its rows."""
    task = find_task(bundle.manifest.task)
    if is_sheet:
        from gigatile.cohort.sheet_reading import columns_of

        columns = columns_of(named[0])
        slides = task.detects_on_slides and "slide" in columns and task.unit not in columns
        return ("slides", "slide") if slides else ("samples", task.unit)
    if task.unit == "case":
        raise UserError(
            f"{named[0]}: not a sheet; the files of a case are named in a sheet with a column for "
            "each modality"
        )
    if task.detects_on_slides and all(map(is_slide, named)):
        return "slides", "slide"
    return "samples", task.unit


def _rows(named: Sequence[Path], out: Path) -> list[tuple[str, str]]:
    """Return the id and the path or address of each file.

    Raises:
        UserError: lists the files that are missing, or that the workflow cannot use.
    """
    rows, faults = [], []
    taken: set[str] = set()
    for path in named:
        if is_remote(path):
            try:
                parse_address(address_of(path))
            except UserError as error:
                faults.append(str(error))
            else:
                rows.append((unique_id(path.stem, path, taken), address_of(path)))
            continue
        resolved = path.absolute()
        if not resolved.exists():
            faults.append(f"{path}: no such file")
        elif resolved.is_dir():
            faults.append(f"{path}: a folder; name its slides, or a sheet")
        elif fault := fault_of_path(resolved):
            faults.append(f"{path}: {fault}")
        else:
            relative = os.path.relpath(resolved.resolve(), out.resolve())
            rows.append((unique_id(path.stem, path, taken), relative))
    if faults:
        raise all_faults(f"{len(faults)} of {len(named)} files cannot be used", faults)
    return rows


def _check_same(configuration: Path, predict: dict[str, str]) -> None:
    """Refuse a folder with predictions of another bundle or another sheet."""
    try:
        content = yaml.safe_load(configuration.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        content = None
    other = content.get("predict") if isinstance(content, dict) else None
    if other != predict:
        raise UserError(
            f"{configuration}: has predict: {other}, not {predict}; name another folder with --out"
        )
