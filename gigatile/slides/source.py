"""The files that a slide consists of: their fingerprint, and a copy of them on a local disk."""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gigatile.files import fingerprint


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


def fingerprint_of(slide: Path) -> str:
    """Identify a slide's content; of several files, their names and fingerprints count.

    What `gigatile.files.fingerprint` can miss in one file, this can.
    """
    first, *others = files_of(slide)
    if not others:
        return fingerprint(first)
    digest = hashlib.blake2b(digest_size=16)
    for path in (first, *others):
        name = os.path.relpath(path, slide.parent)
        digest.update(f"{name}\0{fingerprint(path)}\n".encode())
    return f"blake2b-of-{1 + len(others)}-files:{digest.hexdigest()}"


def size_and_time_of(slide: Path) -> tuple[int, int]:
    """Return the bytes of a slide's files together, and the latest of their times, in ns."""
    seen = [path.stat() for path in files_of(slide)]
    return sum(one.st_size for one in seen), max(one.st_mtime_ns for one in seen)


@contextlib.contextmanager
def local_copy(slide: Path, folder: Path | None) -> Iterator[Path]:
    """Yield a copy of a slide in a folder, which is deleted in the end; without one, the slide.

    It is read from its first byte to its last.
    """
    if folder is None or not slide.is_file():
        yield slide
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="gigatile-") as copies:
        for path in files_of(slide):
            copy = Path(copies) / os.path.relpath(path, slide.parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        yield Path(copies) / slide.name
