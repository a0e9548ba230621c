"""Copies of bundles, and how a folder becomes a bundle."""

import shutil
import tempfile
from pathlib import Path

from gigatile.bundle.card import write_card
from gigatile.bundle.cohort import CohortLook
from gigatile.bundle.contents import (
    CARD,
    IGNORED,
    MANIFEST,
    Bundle,
    BundleManifest,
    open_bundle,
)
from gigatile.errors import UserError
from gigatile.files import sha256_of
from gigatile.json_models import check_model, read_model, write_model
from gigatile.model_files import COHORT, COHORT_IMAGES


def copy_bundle(
    bundle: Bundle,
    out: Path,
    name: str | None = None,
    version: int | None = None,
    with_images: bool = True,
) -> Bundle:
    """Copy a bundle to a new folder, whole or not at all.

    Args:
        bundle: to copy.
        out: the new folder.
        name, version: of the model in the copy; None: as they are.
        with_images: whether to copy what shows that a slide, case or image is in the cohort: the
            hashes of its images, and how each one looks.

    Raises:
        UserError: `out` exists and is not an empty folder, or the name or version is not valid.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists; name a new folder for the bundle")
    changes = {
        key: value for key, value in (("name", name), ("version", version)) if value is not None
    }
    content = bundle.manifest.to_json() | changes
    manifest = check_model(BundleManifest, content, bundle.folder / MANIFEST)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        folder = Path(temporary) / "bundle"
        shutil.copytree(bundle.folder, folder, ignore=shutil.ignore_patterns(*IGNORED))
        if not with_images:
            _remove_members(folder)
        if (folder / CARD).exists():
            write_card(folder, manifest)
        write_manifest(folder, manifest)
        replace_folder(out, folder)
    return open_bundle(out)


def _remove_members(folder: Path) -> None:
    """Remove what shows who is in the cohort."""
    (folder / COHORT_IMAGES).unlink(missing_ok=True)
    if (folder / COHORT).exists():
        look = read_model(CohortLook, folder / COHORT)
        anonymous = look.model_copy(update={"images_compared": 0, "appearance": []})
        write_model(folder / COHORT, anonymous)


def write_manifest(folder: Path, manifest: BundleManifest) -> None:
    """Write bundle.json with the checksums of all other files of the folder."""
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST
    )
    checksums = {path.relative_to(folder).as_posix(): sha256_of(path) for path in files}
    write_model(folder / MANIFEST, manifest.model_copy(update={"files": checksums}))


def replace_folder(out: Path, folder: Path) -> None:
    """Move a folder to `out`; an older folder there is removed afterwards."""
    old = folder.with_name("replaced")
    if out.exists():
        out.rename(old)
    folder.rename(out)
