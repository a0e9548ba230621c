"""The files of a slide: their fingerprint, and copying them to a local disk."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from gigatile.files import named_in_errors
from gigatile.stores.addresses import is_remote
from gigatile.stores.sources import fingerprint, size_and_time

CHUNK_BYTES = 16 << 20
# Suffixes of the formats that OpenSlide 4 reads: openslide.org/formats. Other files may have them,
# too: .tif of a photograph.
SLIDE_SUFFIXES = frozenset(
    (
        *(".svs", ".tif", ".tiff", ".ndpi", ".vms", ".vmu", ".scn", ".mrxs", ".svslide", ".bif"),
        *(".dcm", ".czi"),
    )
)


def files_of(slide: Path) -> list[Path]:
    """Return the files of a slide, starting with the file that the sheet names.

    A MIRAX slide also has a folder of the same name. A DICOM slide has a file per level, all in one
    folder without other slides. Any other slide is a single file, and so is each in a store.
    """
    if is_remote(slide):
        return [slide]
    suffix = slide.suffix.lower()
    others: list[Path] = []
    if suffix == ".mrxs":
        others = [path for path in slide.with_suffix("").rglob("*") if path.is_file()]
    elif suffix == ".dcm":
        others = [path for path in slide.parent.glob(f"*{slide.suffix}") if path != slide]
    return [slide, *sorted(others)]


def fingerprint_of(*sources: Path) -> str:
    """Return a fingerprint of the content of a slide, or of a case's volumes in their order.

    For several files it is a hash of their names and fingerprints. For what it can miss, see
    `gigatile.files.fingerprint`.
    """
    files = [(path, source.parent) for source in sources for path in files_of(source)]
    if len(files) == 1:
        return fingerprint(files[0][0])
    digest = hashlib.blake2b(digest_size=16)
    for path, folder in files:
        name = os.path.relpath(path, folder)
        digest.update(f"{name}\0{fingerprint(path)}\n".encode())
    return f"blake2b-of-{len(files)}-files:{digest.hexdigest()}"


def size_and_time_of(*sources: Path) -> tuple[int, int]:
    """Return the total size of all files of slides or volumes, and the sum of their mtimes in ns.

    With the sum, replacing one of several files by an older one is detected; with the latest mtime
    it would not be. In place of the mtime of a file in a store there is a hash of its ETag.
    """
    stats = [size_and_time(path) for source in sources for path in files_of(source)]
    return sum(size for size, _ in stats), sum(time for _, time in stats)


def copy_to(slide: Path, folder: Path, report_progress: Callable[[], None] = lambda: None) -> Path:
    """Copy the files of a slide into a folder; return the path of the slide there.

    Args:
        slide: the file that the sheet names.
        folder: must exist.
        report_progress: called after each chunk.

    Raises:
        OSError: a file cannot be read or written; the error has its name.
    """
    for path in files_of(slide):
        copy = folder / os.path.relpath(path, slide.parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as source, named_in_errors(copy), copy.open("wb") as target:
            while chunk := _read(source, path):
                target.write(chunk)
                report_progress()
    return folder / slide.name


def _read(source: BinaryIO, path: Path) -> bytes:
    with named_in_errors(path):
        return source.read(CHUNK_BYTES)
