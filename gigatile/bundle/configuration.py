"""The configuration of a run that predicts with a bundle instead of training a model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gigatile.bundle.contents import MANIFEST, BundleManifest, open_bundle
from gigatile.bundle.sections import decisive
from gigatile.errors import UserError
from gigatile.settings.section import NULLS
from gigatile.tasks import find_task


def bundle_of(config: Mapping[str, Any]) -> str | None:
    """Return `predict.bundle` of a merged configuration; None: the run trains its own model."""
    predict = config.get("predict")
    path = predict.get("bundle") if isinstance(predict, Mapping) else None
    return None if path in (None, *NULLS) else str(path)


def with_bundle(config: dict[str, Any], folder: Path, *, check: bool = False) -> dict[str, Any]:
    """Return a merged configuration with the task and the settings of its bundle, if it has one.

    The bundle decides all settings that the predictions depend on. Settings that only say how a
    stage runs, such as `tiles.cores`, are those of the configuration.

    Args:
        config: the merged configuration.
        folder: that the path of the bundle is relative to.
        check: whether to compare the checksums of all files of the bundle.

    Raises:
        UserError: there is no such bundle, or it is damaged.
    """
    path = bundle_of(config)
    if path is None:
        return config
    try:
        return merge_manifest(config, open_bundle(folder / path, check=check).manifest)
    except UserError as error:
        raise UserError(f"predict.bundle: {error}") from None


def merge_manifest(config: dict[str, Any], manifest: BundleManifest) -> dict[str, Any]:
    """Return a configuration with the task and the settings of a bundle.

    Raises:
        UserError: the bundle has settings that are not of its task: it could name files to read.
    """
    sections = {}
    known = find_task(manifest.task).sections
    if unknown := [name for name in manifest.settings if name not in known]:
        raise UserError(
            f"{MANIFEST}: has the section {unknown[0]!r}; the task {manifest.task} has "
            f"{', '.join(known)}"
        )
    for name, values in manifest.settings.items():
        section = config.get(name)
        sections[name] = {
            **(section if isinstance(section, Mapping) else {}),
            **decisive(name, values),
        }
    return {**config, "task": manifest.task, **sections}
