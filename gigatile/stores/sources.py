"""Files on a disk or in a store: whether they are there, and their content."""

import errno
import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gigatile import files
from gigatile.stores.addresses import address_of, is_remote
from gigatile.stores.errors import StoreError

# Requests for sizes and versions that run side by side.
REQUESTS = 32
# A file in a store is hashed in parts of this size, in bytes.
HASHED_BYTES = 32 << 20


def fingerprint(path: Path, blocks: int = 16, block_bytes: int = 65536) -> str:
    """Return the fingerprint of a file; it is the same on a disk and in a store.

    See `gigatile.files.fingerprint`.

    Raises:
        OSError: it cannot be read.
    """
    if not is_remote(path):
        return files.fingerprint(path, blocks, block_bytes)
    from gigatile.stores.remote_file import open_remote

    remote = open_remote(path)
    return files.fingerprint_of_ranges(remote.size, remote.read_ranges, blocks, block_bytes)


def update_version(path: Path) -> None:
    """Ask a store for the present version of a file; otherwise one of ten minutes ago is used.

    Raises:
        OSError: it cannot be read.
    """
    if is_remote(path):
        from gigatile.stores.remote_file import version_now

        version_now(address_of(path))


def first_bytes(path: Path, count: int) -> bytes:
    """Return the first bytes of a file.

    Raises:
        OSError: it cannot be read.
    """
    if not is_remote(path):
        with path.open("rb") as handle:
            return handle.read(count)
    from gigatile.stores.remote_file import open_remote

    remote = open_remote(path)
    return remote.read(0, min(count, remote.size))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file; all of it is read.

    Raises:
        OSError: it cannot be read.
    """
    if not is_remote(path):
        return files.sha256_of(path)
    from gigatile.stores.remote_file import open_remote

    remote, digest = open_remote(path), hashlib.sha256()
    for begin in range(0, remote.size, HASHED_BYTES):
        digest.update(remote.read(begin, min(begin + HASHED_BYTES, remote.size)))
    return digest.hexdigest()


def size_and_time(path: Path) -> tuple[int, int]:
    """Return the size of a file in bytes, and its mtime in ns; in a store, a hash of its version.

    Raises:
        OSError: it cannot be read.
    """
    if not is_remote(path):
        stat = path.stat()
        return stat.st_size, stat.st_mtime_ns
    from gigatile.stores.remote_file import open_remote

    remote = open_remote(path)
    version = hashlib.blake2b(remote.version.encode(), digest_size=7).digest()
    return remote.size, int.from_bytes(version)


def unreadable(paths: Iterable[Path]) -> dict[Path, str]:
    """Return why files in stores cannot be read, of those that cannot; they are asked in parallel.

    Their versions are known for a while after that (see `open_remote`).
    """
    remote = list(dict.fromkeys(filter(is_remote, paths)))
    if not remote:
        return {}
    from gigatile.stores.listing import learn_versions
    from gigatile.stores.remote_file import open_remote

    learn_versions(remote)

    silent: list[str] = []

    def fault(path: Path) -> str | None:
        if silent:  # each further request would wait as long
            return silent[0]
        try:
            open_remote(path)
        except StoreError as error:
            if error.errno == errno.EIO:
                silent.append(str(error.strerror))
            return str(error.strerror)
        return None

    with ThreadPoolExecutor(REQUESTS) as pool:
        faults = zip(remote, pool.map(fault, remote), strict=True)
        return {path: reason for path, reason in faults if reason}
