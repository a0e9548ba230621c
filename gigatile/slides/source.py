"""The files that a slide consists of: their fingerprint, and a copy of them on a local disk."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from gigatile.files import fingerprint, named_in_errors

COPIED_BYTES = 16 << 20


def files_of(slide: Path) -> list[Path]:
    """Return the files of a slide, the one that the sheet names first.

    A MIRAX slide has a folder of its name beside it. A DICOM slide has a file per level, and all of
    them lie in its folder, which must hold no other slide. Any other slide is one file.
    """
    suffix = slide.suffix.lower()
    others: list[Path] = []
    if suffix == ".mrxs":
        others = [path for path in slide.with_suffix("").rglob("*") if path.is_file()]
    elif suffix == ".dcm":
        others = [path for path in slide.parent.glob(f"*{slide.suffix}") if path != slide]
    return [slide, *sorted(others)]


def fingerprint_of(*sources: Path) -> str:
    """Identify the content of a slide, or of a case's volumes in their order.

    Of several files, their names and fingerprints count. What `gigatile.files.fingerprint` can miss
    in one file, this can.
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
    """Return the bytes of a slide's files together, and the sum of their times, in ns.

    Or of a case's volumes. Of the sum, as one of several that is replaced by an older one shall be
    seen.
    """
    seen = [path.stat() for source in sources for path in files_of(source)]
    return sum(one.st_size for one in seen), sum(one.st_mtime_ns for one in seen)


def copy_to(slide: Path, folder: Path, tell: Callable[[], None] = lambda: None) -> Path:
    """Copy a slide's files into a folder, from the first byte to the last; return the slide there.

    Args:
        slide: the file that the sheet names.
        folder: it is there already.
        tell: is called each time that a part was copied.

    Raises:
        OSError: a file cannot be read or written; it names the file.
    """
    for path in files_of(slide):
        copy = folder / os.path.relpath(path, slide.parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as source, named_in_errors(copy), copy.open("wb") as target:
            while part := _read(source, path):
                target.write(part)
                tell()
    return folder / slide.name


def _read(source: BinaryIO, path: Path) -> bytes:
    with named_in_errors(path):
        return source.read(COPIED_BYTES)
