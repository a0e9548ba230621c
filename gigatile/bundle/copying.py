"""Copies of bundles, and how a folder becomes a bundle."""

import shutil
import tempfile
from pathlib import Path

from gigatile.bundle.contents import (
    CARD,
    IGNORED,
    MANIFEST,
    Bundle,
    BundleManifest,
    open_bundle,
)
from gigatile.errors import UserError
from gigatile.files import read_json, sha256_of, write_json, write_text
from gigatile.json_models import check_model, write_model
from gigatile.model_files import COHORT, COHORT_IMAGES

# The paragraphs of the card on the members of the cohort.
_OF_MEMBERS = (f"`{COHORT_IMAGES}` has ", f"`{COHORT}` has ")


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
        card = folder / CARD
        text = card.read_text(encoding="utf-8") if card.exists() else ""
        if not with_images:
            text = _remove_members(folder, text)
        if text:
            _, _, rest = text.partition("\n")
            write_text(card, f"# {manifest.name}, version {manifest.version}\n{rest}")
        write_manifest(folder, manifest)
        replace_folder(out, folder)
    return open_bundle(out)


def _remove_members(folder: Path, card: str) -> str:
    """Remove what shows who is in the cohort; return the text of the card without it."""
    (folder / COHORT_IMAGES).unlink(missing_ok=True)
    if (folder / COHORT).exists():
        write_json(folder / COHORT, read_json(folder / COHORT) | {"appearance": []})
    parts = card.split("\n\n")
    return "\n\n".join(part for part in parts if not part.startswith(_OF_MEMBERS))


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
