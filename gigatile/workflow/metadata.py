"""Snakemake's metadata about outputs: parameters, input files and their checksums.

They are moved from .snakemake/ to results/, so that a copy of the results includes them.
"""

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from gigatile.errors import UserError
from gigatile.workflow.invocation import Invocation
from gigatile.workflow.snakemake_internals import INCOMPLETE, METADATA, record_files

KEPT_METADATA = Path("results/.snakemake-metadata")


def keep_metadata_in_results(invocation: Invocation) -> None:
    """Move the metadata to `KEPT_METADATA`, and replace their folder with a link.

    Raises:
        UserError: the link cannot be created.
    """
    if not invocation.is_main_process:
        return
    if invocation.executor is not None:
        KEPT_METADATA.mkdir(parents=True, exist_ok=True)
    if METADATA.is_symlink() and not METADATA.exists():
        METADATA.unlink()  # results/ was deleted
    if not KEPT_METADATA.is_dir() or METADATA.is_symlink():
        return
    folder = METADATA.parent
    if not os.access(folder if folder.exists() else os.curdir, os.W_OK):
        raise UserError(
            f"{Path.cwd()}: not writable, and a plan creates {folder}/ there; "
            "call Snakemake in a copy of the project"
        )
    if METADATA.is_dir():  # from an earlier release, or from a Snakemake that ran meanwhile
        shutil.copytree(METADATA, KEPT_METADATA, dirs_exist_ok=True, copy_function=_copy_newer)
        shutil.rmtree(METADATA)
    # Without this folder, Snakemake treats the metadata as those of an old release.
    INCOMPLETE.mkdir(parents=True, exist_ok=True)
    # Another Snakemake may create the link at the same time.
    with contextlib.suppress(FileExistsError):
        METADATA.symlink_to(os.path.relpath(KEPT_METADATA.resolve(), folder.resolve()))


def check_metadata(invocation: Invocation, run: str, outputs: Iterable[str]) -> None:
    """Check that there are metadata about the files of a run.

    Without any, Snakemake would not see changes of settings, code or sheets. Options that only
    print something, or that make or accept all files, are allowed.

    Args:
        invocation: of this process.
        run: folder of the run.
        outputs: paths of outputs, whether they exist or not.

    Raises:
        UserError: outputs exist, and there are no metadata about any of them.
    """
    if not invocation.needs_metadata:
        return
    files_exist = False
    for path in filter(_exists, outputs):
        if has_metadata(path):
            return
        files_exist = True
    if files_exist:
        raise UserError(
            f"{run}: {KEPT_METADATA} has no metadata about these files, so Snakemake cannot know "
            "with which settings, code and sheet they were made, and which of them are current. "
            "Restore that folder, or call Snakemake with --touch --forceall to accept all files as "
            "current, or with --forceall to make all files again"
        )


def has_metadata(output: str) -> bool:
    """Return whether Snakemake has metadata about an output, or a mark of an incomplete job."""
    return any(map(_exists, record_files(output)))


def _exists(path: str) -> bool:
    return Path(path).exists()


def _copy_newer(source: str, target: str) -> None:
    """Copy a file with its time, unless the target is newer."""
    newer = Path(source).stat().st_mtime
    if not Path(target).exists() or newer > Path(target).stat().st_mtime:
        shutil.copy2(source, target)
