"""Files in stores that are read at random: their parts are kept in a local folder, up to a limit.

If they exceed it, the parts of the file that was not read for the longest time are deleted. They
are fetched again if they are read again.
"""

import contextlib
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gigatile.errors import UserError
from gigatile.stores.addresses import address_of
from gigatile.stores.errors import StoreError
from gigatile.stores.partial_copy import PartialCopy, Ranges
from gigatile.stores.remote_file import RemoteFile, open_remote

# Files from which parts are fetched at the same time.
FILES_AT_ONCE = 16
# If a file is read from front to back, so much is fetched at once.
SEQUENTIAL_BYTES = 8 << 20


class Cache:
    """Parts of files in stores, in the temporary folder. Several threads may use it."""

    def __init__(self, limit_bytes: float) -> None:
        """Create an empty cache.

        Args:
            limit_bytes: that the parts of all files may take, beyond those that are being read.
        """
        self._limit, self._bytes = limit_bytes, 0
        self._lock = threading.Lock()
        # The files that have parts here: the one that was read last is at the end.
        self._used: dict[CachedFile, None] = {}
        self._pool = ThreadPoolExecutor(FILES_AT_ONCE)

    def open(self, path: Path, version: str | None = None) -> "CachedFile":
        """Open a file; nothing is fetched yet.

        Args:
            path: represents the address.
            version: that it must have; None: any. See `RemoteFile.version`.

        Raises:
            UserError: the file is missing, cannot be read, or has another version.
        """
        with _explained():
            remote = open_remote(path)
        if version is not None and remote.version != version:
            raise UserError(f"{address_of(path)}: it was changed since it was written")
        return CachedFile(self, path, remote)

    def fetch(self, ranges: Mapping["CachedFile", Ranges]) -> None:
        """Fetch ranges of several files at the same time.

        Raises:
            UserError: they cannot be read.
        """
        if len(ranges) == 1:
            ((file, of_file),) = ranges.items()
            file.fetch(of_file)
            return
        for _ in self._pool.map(lambda each: each[0].fetch(each[1]), ranges.items()):
            pass

    def close(self) -> None:
        """Delete all parts."""
        self._pool.shutdown(cancel_futures=True)
        with self._lock:
            for file in self._used:
                file.drop()
            self._used.clear()

    @contextlib.contextmanager
    def reading(self, file: "CachedFile") -> Iterator[PartialCopy]:
        """Give the local copy of a file to the block; it is not deleted meanwhile."""
        with self._lock:
            if file.copy is None:
                file.copy = _new_copy(file.remote)
            self._used.pop(file, None)
            self._used[file] = None
            file.readers += 1
            copy = file.copy
        try:
            yield copy
        finally:
            with self._lock:
                file.readers -= 1
                self._shrink(file, copy.fetched)

    def _shrink(self, file: "CachedFile", fetched: int) -> None:
        """Count what is there of a file; delete the parts of others if all are too many."""
        more, file.counted = fetched - file.counted, fetched
        self._bytes += more
        for other in list(self._used) if more and self._bytes > self._limit else ():
            if self._bytes <= self._limit:
                return
            if not other.readers:
                self._bytes -= other.counted
                other.drop()
                del self._used[other]


def _new_copy(remote: RemoteFile) -> PartialCopy:
    """Return a copy. Its file has no name any more: nothing is left if the process is killed."""
    with tempfile.TemporaryDirectory(prefix="gigatile-") as folder:
        return PartialCopy(remote, Path(folder))


class CachedFile:
    """A file in a store; see `gigatile.records.files.RecordFile`.

    Attributes:
        path: represents the address.
        remote: the version that is read.
        copy: the local copy; None: it has no parts here. The cache's lock guards it, `readers`
            and `counted`.
        readers: the number of threads that read the copy.
        counted: bytes of the copy that the cache has counted.
    """

    in_store = True

    def __init__(self, cache: Cache, path: Path, remote: RemoteFile) -> None:
        self.path, self.remote = path, remote
        self.copy: PartialCopy | None = None
        self.readers = self.counted = 0
        self._cache = cache
        # Where the last missing part ended: a read from there on is one of many in order.
        self._next = -1

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self.remote.size

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the file; fewer if it ends before."""
        buffer = bytearray(max(0, min(size, self.remote.size - offset)))
        self.read_into(memoryview(buffer), offset)
        return bytes(buffer)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Read bytes of the file into a buffer; return their number.

        Raises:
            UserError: the store does not answer or denies access, or the file was changed.
        """
        end = min(self.remote.size, offset + buffer.nbytes)
        with _explained(), self._cache.reading(self) as copy:
            if not copy.has(offset, end):
                more = SEQUENTIAL_BYTES if offset == self._next else 0
                self._next = max(end, offset + more)
                copy.fetch([(offset, self._next)])
            return copy.read_into(buffer, offset)

    def fetch(self, ranges: Ranges) -> None:
        """Fetch ranges, so that reading them is fast.

        Raises:
            UserError: see `read_into`.
        """
        with _explained(), self._cache.reading(self) as copy:
            copy.fetch(ranges)

    def drop(self) -> None:
        """Delete the local copy; called by the cache."""
        if self.copy is not None:
            self.copy.close()
            self.copy, self.counted = None, 0

    def close(self) -> None:
        """Do nothing: the cache deletes the copy."""


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Raise errors of stores as errors for the user."""
    try:
        yield
    except StoreError as error:
        raise UserError(str(error)) from None
