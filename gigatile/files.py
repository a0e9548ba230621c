"""Files that appear whole or not at all, and the checksums that identify them."""

import contextlib
import glob
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gigatile.errors import UserError


@contextlib.contextmanager
def named_in_errors(path: Path | str | None) -> Iterator[None]:
    """Name a file in the block's errors of the system, which name none on reading and writing."""
    try:
        yield
    except OSError as error:
        if path is not None and error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def write_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which takes its place when the block ends well.

    The bytes are on the disk before the rename, so that neither a kill nor a power cut leaves a
    half-written file under the final name. When the block raises, nothing is left behind.

    Raises:
        OSError: the disk is full, or fails; it names `path`, which a library's error may not.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix is kept: some libraries choose the format by it.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        with named_in_errors(path):
            yield temporary
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            # mkstemp makes private files; results are as readable as the umask allows.
            umask = os.umask(0)
            os.umask(umask)
            temporary.chmod(0o666 & ~umask)
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_half_written(*paths: Path) -> None:
    """Remove what a process that was killed while it wrote these files has left beside them."""
    for path in paths:
        # mkstemp's eight characters; other files' names may begin alike.
        for left in path.parent.glob(f".{glob.escape(path.stem)}-????????{path.suffix}"):
            left.unlink(missing_ok=True)


def copy_whole(source: Path, path: Path) -> None:
    """Copy a file's bytes, whole or not at all."""
    with write_whole(path) as temporary:
        shutil.copyfile(source, temporary)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 `text`, line ends as they are, whole or not at all."""
    with write_whole(path) as temporary:
        temporary.write_bytes(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, keys in their given order; NaN and infinity are refused."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        UserError: the file is missing or is no JSON; the message names it.
    """
    try:
        return json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except ValueError as error:
        raise UserError(
            f"{path}: damaged, not JSON ({error}); delete it to have it remade"
        ) from None


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def fingerprint(path: Path, blocks: int = 16, block_bytes: int = 65536) -> str:
    """Identify a file's content at a cost that does not grow with its size.

    BLAKE2b of the size and of `blocks` blocks spread evenly from the first byte to the last: all
    of a file up to 1 MiB, 1 MiB of a larger one. What it can miss: a change of equal length that
    lies between the blocks of a larger file. A rescan, another slide, a file cut short and a
    file grown do not escape.
    """
    size = path.stat().st_size
    digest = hashlib.blake2b(str(size).encode(), digest_size=16)
    with path.open("rb") as handle:
        if size <= blocks * block_bytes:
            digest.update(handle.read())
        else:
            for block in range(blocks):
                handle.seek((size - block_bytes) * block // (blocks - 1))
                digest.update(handle.read(block_bytes))
    return f"blake2b-{blocks}x{block_bytes}:{digest.hexdigest()}"


def combined_checksum(files: Mapping[str, str]) -> str:
    """Return one SHA-256 for many files, as `sha256sum … | sha256sum` prints it.

    Args:
        files: from name to SHA-256; sorted by name, as the shell's C locale does.
    """
    lines = "".join(f"{files[name]}  {name}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def checksums(paths: dict[str, Path]) -> dict[str, str]:
    """Return the SHA-256 of each named file: what a result says it was made from."""
    return {name: sha256_of(path) for name, path in paths.items()}
