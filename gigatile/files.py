"""Atomic writes, JSON files and checksums."""

import contextlib
import glob
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gigatile.errors import UserError


@contextlib.contextmanager
def named_in_errors(path: Path | str | None) -> Iterator[None]:
    """Add a file name to the block's OSErrors: those of read and write have none."""
    try:
        yield
    except OSError as error:
        if path is not None and error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def write_whole(path: Path) -> Iterator[Path]:
    """Write a file atomically: yield a temporary path, and rename it to `path` after the block.

    The data are flushed to disk before the rename, so neither a killed process nor a power failure
    leaves a partial file under the final name. If the block raises, the temporary file is removed.

    Raises:
        OSError: the disk is full or fails; names `path`, even if the library's error does not.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Keep the suffix: some libraries choose the format by it.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        with named_in_errors(path):
            yield temporary
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            # mkstemp creates private files; apply the umask instead.
            umask = os.umask(0)
            os.umask(umask)
            temporary.chmod(0o666 & ~umask)
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def temporary_link(file: Path, path: Path) -> Iterator[Path]:
    """Yield a hard link to a file, under a temporary name next to `path`, and remove it at the end.

    Raises:
        OSError: the file does not exist, or the file system has no hard links.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    link = Path(name)
    try:
        link.unlink()
        # Linux would link a symbolic link itself, and not the file that it leads to.
        link.hardlink_to(file.resolve())
        yield link
    finally:
        link.unlink(missing_ok=True)


def remove_half_written(*paths: Path) -> None:
    """Remove the temporary files that a killed process left while it wrote these files."""
    for path in paths:
        # Match exactly the eight characters of mkstemp: other files may share the prefix.
        for leftover in path.parent.glob(f".{glob.escape(path.stem)}-????????{path.suffix}"):
            leftover.unlink(missing_ok=True)


def copy_whole(source: Path, path: Path) -> None:
    """Copy a file atomically."""
    with write_whole(path) as temporary:
        shutil.copyfile(source, temporary)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, atomically and without changing line ends."""
    with write_whole(path) as temporary:
        temporary.write_bytes(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, keys in the given order; refuse NaN and infinity."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        UserError: the file is missing or is not JSON.
    """
    try:
        return json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except ValueError as error:
        raise UserError(f"{path}: damaged, not JSON ({error}); delete it and run again") from None


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


# Suffixes of text files, which users edit.
TEXTS = (".json", ".geojson")


def sha256_of_bytes(*parts: bytes) -> str:
    """Return the SHA-256 of bytes that follow each other."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def fingerprint(path: Path, blocks: int = 16, block_bytes: int = 65536) -> str:
    """Return a hash of a file's content whose cost does not grow with the file.

    BLAKE2b of the size and of `blocks` blocks at equal distances from the first byte to the last:
    the whole file up to 1 MiB, 1 MiB of a larger file. Annotations (`TEXTS`) are read as a whole,
    since an edit changes a few of their bytes. It detects a rescan, another slide and a
    truncated or longer file. It misses a change of equal length between the blocks of a large file.
    """
    size = path.stat().st_size
    with path.open("rb") as handle:
        if size > blocks * block_bytes and path.suffix in TEXTS:
            return _hash_of(size, iter(lambda: handle.read(1 << 20), b""), blocks, block_bytes)

        def read(ranges: Sequence[tuple[int, int]]) -> Iterator[bytes]:
            for begin, end in ranges:
                handle.seek(begin)
                yield handle.read(end - begin)

        return fingerprint_of_ranges(size, read, blocks, block_bytes)


def fingerprint_of_ranges(
    size: int,
    read: Callable[[Sequence[tuple[int, int]]], Iterable[bytes]],
    blocks: int = 16,
    block_bytes: int = 65536,
) -> str:
    """Return the fingerprint of a file that can be read by ranges; see `fingerprint`.

    Args:
        size: of the file in bytes.
        read: returns the bytes of ranges: begin and end of each.
        blocks, block_bytes: number and size of the blocks.
    """
    ranges = [(0, size)]
    if size > blocks * block_bytes:
        begins = [(size - block_bytes) * block // (blocks - 1) for block in range(blocks)]
        ranges = [(begin, begin + block_bytes) for begin in begins]
    return _hash_of(size, read(ranges), blocks, block_bytes)


def _hash_of(size: int, parts: Iterable[bytes], blocks: int, block_bytes: int) -> str:
    digest = hashlib.blake2b(str(size).encode(), digest_size=16)
    for part in parts:
        digest.update(part)
    return f"blake2b-{blocks}x{block_bytes}:{digest.hexdigest()}"


def combined_checksum(files: Mapping[str, str]) -> str:
    """Return one SHA-256 for many files, as `sha256sum … | sha256sum` prints it.

    Args:
        files: SHA-256 by file name. They are sorted by name, as in the C locale.
    """
    lines = "".join(f"{files[name]}  {name}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def checksums(paths: dict[str, Path]) -> dict[str, str]:
    """Return the SHA-256 of each named file, to record the inputs of a result."""
    return {name: sha256_of(path) for name, path in paths.items()}
